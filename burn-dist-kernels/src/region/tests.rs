//! Against a plain interpreter.
