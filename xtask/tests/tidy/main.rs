//! What source files may contain, and the arrows between them, read as text: nothing of the workspace is compiled.

mod arrows;
mod circles;
mod duplicates;
mod falling;
mod lengths;
mod listeners;
mod paths;
mod text;
mod undone;
mod workspace;
