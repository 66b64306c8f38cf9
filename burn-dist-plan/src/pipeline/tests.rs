//! Schedules against theory, and what is wrong with those that cannot run.

mod chart;
mod lowered;
mod paper;
mod random;
mod search;
mod text;
mod theory;
mod wrong;
