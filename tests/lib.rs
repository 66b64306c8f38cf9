//! What burn-dist promises on Burn's current line: tests alone, in `promises.rs`.
