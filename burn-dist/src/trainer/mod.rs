//! A trainer for any model: steps, accumulation, validation, checkpoints, figures, memory, signals, processes, options
//! (feature `train`).
//!
//! A model implements [`model::Model`], its data [`batch::BatchSource`]; [`run::run`] trains it. What a run leaves is
//! what [`train`](crate::train) has: a folder with figures, checkpoints and its configuration.
//!
//! | file | idea |
//! | --- | --- |
//! | `model`, `batch` | what a program brings: a model, and rows for it |
//! | `tokens` | rows of tokens, for language models: texts as batches, and what is held out of them |
//! | `args`, `sections` | groups of options for its command line; their places in a configuration file |
//! | `program`, `command_line`, `job` | a program's command line with such a file; the model and the rows that it names |
//! | `session` | a training command between its start and its end |
//! | `task` | a whole program: a model by options of its own, with rows made from numbers |
//! | `explain`, `simulate`, `evaluate` | commands that run no step: its plan, its time, the loss of a model as it is |
//! | `search` | the command `plan`: the fastest mesh for a model |
//! | `folder`, `convert` | models from folders of Hugging Face, and to them; weights from one form to another |
//! | `lora` | adapters: which layers have some, their options, and their folders as PEFT lays them out |
//! | `mesh` | the devices, opened by these options |
//! | `run`, `step` | the loop; one step of it: microbatches, clipping, the optimizer |
//! | `validation` | the loss on what is held out |
//! | `checkpoints`, `options` | what is saved when, and how a run goes on; what has changed since |
//! | `metrics`, `progress`, `report`, `plot`, `outputs` | figures: in files, on the screen, at the end, drawn |
//! | `schedule`, `optimizer` | learning rates; AdamW |
//! | `predict`, `capacity`, `stages` | a step that is planned and not run; whether it fits; what is on which stage |
//! | `processes`, `voice` | several processes of one program: what they agree on, and which of them speaks |
//! | `error`, `exit`, `lost` | why a run does not begin, or ends; its exit codes; a loss that is no number |

pub mod args;
pub mod batch;
pub mod capacity;
pub mod checkpoints;
pub mod command_line;
pub mod convert;
pub mod error;
pub mod evaluate;
pub mod exit;
pub mod explain;
pub mod folder;
pub mod job;
pub mod lora;
pub mod lost;
pub mod mesh;
pub mod metrics;
pub mod model;
pub mod optimizer;
pub mod options;
pub mod outputs;
pub mod plot;
pub mod predict;
pub mod processes;
pub mod program;
pub mod progress;
pub mod report;
pub mod run;
pub mod schedule;
pub mod search;
pub mod sections;
pub mod session;
pub mod simulate;
pub mod stages;
pub mod step;
pub mod task;
pub mod tokens;
pub mod validation;
pub mod voice;
