//! What source files may contain, and the arrows between them, read as text: nothing of the workspace is compiled.

mod arrows;
mod circles;
mod duplicates;
mod errors;
mod falling;
mod lengths;
mod levels;
mod lines;
mod links;
mod listeners;
mod lock;
mod panics;
mod paths;
mod published;
mod readers;
mod refused;
mod seams;
mod surface;
mod targets;
mod text;
mod undone;
mod wording;
mod workspace;
