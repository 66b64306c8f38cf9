//! Schedules against theory, and what is wrong with those that cannot run.

mod random;
mod text;
mod theory;
mod wrong;
