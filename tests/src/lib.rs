//! Promises of burn-dist on the current line of Burn. There are tests alone.
