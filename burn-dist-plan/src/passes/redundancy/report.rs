//! Work that ranks do more than once, in numbers and as text.

use std::fmt;

use serde::Serialize;

use crate::bytes::human;

/// A mesh warns when more than this share of the work of a window is done more than once along an axis.
const SHARE_MAX: f64 = 0.1;

/// Work that ranks along one axis do more than once.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AxisRedundancy {
    /// The axis.
    pub axis: String,
    /// Flops done more than once along it, over all ranks.
    pub flops: f64,
    /// The first operation among these: the first product (of matrices, a convolution, attention), if there is one.
    pub first: Option<String>,
    #[serde(skip)]
    pub(crate) is_product: bool,
    #[serde(skip)]
    pub(crate) is_model: bool,
    /// True if rows of data are split over it.
    #[serde(skip)]
    pub(crate) is_data: bool,
    /// True if the work of some product is split over it.
    #[serde(skip)]
    pub(crate) is_split: bool,
}

/// How much of the work is done more than once.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Redundancy {
    /// Flops of all ranks together: of products and of everything else but the optimizer's update.
    pub flops: f64,
    /// Flops of the products alone, each counted once, whoever does it how often, and without what is made again: what
    /// the model asks for.
    pub model_flops: f64,
    /// Flops of the products that all ranks execute, together: what they repeat and what is made again included.
    pub hardware_flops: f64,
    /// The axes of the mesh with more than one rank, in mesh order.
    pub axes: Vec<AxisRedundancy>,
    /// The rows of data, if they are fewer than the ranks that would each have rows of their own, and these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub few_rows: Option<FewRows>,
    /// True if there are rows of data at all.
    #[serde(skip)]
    pub(crate) has_rows: bool,
}

/// Rows of data that are too few to split: every rank computes all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FewRows {
    /// The most rows of data that a window has.
    pub rows: usize,
    /// The ranks along all axes that split rows, together: as many rows would be enough.
    pub ranks: usize,
}

impl Redundancy {
    /// Returns the share of all flops that are done more than once along an axis, from 0 to 1.
    pub fn share(&self, axis: &str) -> f64 {
        let found = self.axes.iter().find(|found| found.axis == axis);
        match found {
            Some(found) if self.flops > 0.0 => found.flops / self.flops,
            _ => 0.0,
        }
    }

    /// Returns what to say of a window whose ranks repeat too much; nothing of one without products, which is no work
    /// to speak of, and along an axis that splits rows, nothing of one without rows.
    pub fn warning(&self) -> Option<String> {
        let is_told = |axis: &&AxisRedundancy| {
            let has_way_out = axis.is_model || self.has_rows;
            has_way_out && self.hardware_flops > 0.0 && self.share(&axis.axis) > SHARE_MAX
        };
        let texts: Vec<String> = self
            .axes
            .iter()
            .filter(is_told)
            .map(|axis| {
                let percent = 100.0 * self.share(&axis.axis);
                let first = axis.first.as_deref().unwrap_or("an operation");
                let name = &axis.axis;
                let few_rows = self.few_rows.filter(|_| axis.is_data);
                let way_out = match (few_rows, axis.is_model, axis.is_split) {
                    (Some(FewRows { rows, ranks }), ..) => format!(
                        "{rows} row(s) of data cannot be split over the {ranks} ranks that take rows of their own, so \
                         every rank computes all of them: give a step at least {ranks} rows, or the mesh fewer ranks \
                         along {name}"
                    ),
                    (None, true, _) => format!(
                        "split the model over {name}: give its layers a style (`#[parallel(..)]` or a `Plan`) \
                         and call `.parallelize` before it is first used"
                    ),
                    (None, false, false) => format!(
                        "split the batch over {name}: make it from data, its rows as dim 0, or `redistribute` \
                         it, and call `.parallelize` on the model before it is first used"
                    ),
                    (None, false, true) => format!(
                        "the batch is split over {name}, but to gather its few rows is cheaper than to reduce \
                         the gradients of large weights: give a step more rows, or look for what is whole in \
                         `burn_dist::explain`"
                    ),
                };
                format!(
                    "{percent:.0} % of the work is done more than once along {name}, first by {first}: {way_out}"
                )
            })
            .collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

impl std::ops::AddAssign<&Redundancy> for Redundancy {
    fn add_assign(&mut self, other: &Redundancy) {
        self.flops += other.flops;
        self.model_flops += other.model_flops;
        self.hardware_flops += other.hardware_flops;
        self.few_rows = self.few_rows.or(other.few_rows);
        self.has_rows |= other.has_rows;
        for axis in &other.axes {
            match self.axes.iter_mut().find(|mine| mine.axis == axis.axis) {
                Some(mine) => {
                    mine.is_split |= axis.is_split;
                    mine.add(axis.flops, axis.is_product, || axis.first.clone());
                }
                None => self.axes.push(axis.clone()),
            }
        }
    }
}

impl AxisRedundancy {
    pub(crate) fn add(
        &mut self,
        flops: f64,
        is_product: bool,
        name: impl FnOnce() -> Option<String>,
    ) {
        if flops <= 0.0 {
            return;
        }
        self.flops += flops;
        if self.first.is_none() || (is_product && !self.is_product) {
            self.first = name();
            self.is_product = is_product;
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (model, ranks) = (human_flops(self.model_flops), human_flops(self.flops));
        write!(f, "work of the model: {model}, of all ranks: {ranks}")?;
        for (index, axis) in self.axes.iter().enumerate() {
            let percent = 100.0 * self.share(&axis.axis);
            let lead = if index == 0 {
                "; done more than once: "
            } else {
                ", "
            };
            write!(f, "{lead}{percent:.1} % along {}", axis.axis)?;
            if let Some(first) = &axis.first {
                write!(f, " (first {first})")?;
            }
        }
        Ok(())
    }
}

/// Flops for people: `12.5 Mflop`.
fn human_flops(flops: f64) -> String {
    const UNITS: [&str; 6] = ["flop", "kflop", "Mflop", "Gflop", "Tflop", "Pflop"];
    human(flops, 1000.0, &UNITS)
}
