//! What source files may contain, and the arrows between them, read as text: nothing of the workspace is compiled for it.

mod arrows;
mod lengths;
mod paths;
mod text;
mod undone;
mod workspace;
