//! Float8: what `burn_dist_plan::float8` plans, run. [`mod@reference`] is the definition, on the host; the kernels of
//! `burn-dist-cubecl` have its bits.

pub mod reference;
