//! Plans: which parameter is split over which mesh axis, by path, and how the model is trained.
//!
//! | file | idea |
//! | --- | --- |
//! | `plan`, `pattern` | entries and the paths they name |
//! | `describe` | the trait the derive implements, and what it writes into |
//! | `tree` | the tree of a module: its modules and float parameters |
//! | `line` | a line of Burn, as far as it walks over modules |
//! | `resolve`, `fit` | plan x tree x mesh -> specs, and what a style means for a shape |
//! | `stages` | the stage of each parameter |
//! | `idle` | axes that split nothing of a model |
//! | `pipeline` | how a batch is cut into microbatches |

mod describe;
mod entry;
mod error;
mod fit;
mod idle;
mod line;
mod pattern;
mod pipeline;
mod plan;
mod resolve;
mod stages;
mod tree;

pub use describe::{Blocks, Describe, Mark, Scope, probe};
pub use error::ParallelError;
pub use idle::{idle, idle_axes};
pub use line::Line;
pub use pipeline::{PipelineError, microbatches};
pub use plan::Plan;
pub use tree::{ATTACHED, ModulePath, ModuleTree, TreeBuilder};

use burn_dist_plan::{LayoutText, ParamRole, ParamSpec, Style};
