//! Everything the planner must know about one parameter, as plain data.

use super::owner::Owner;
use super::stage::Stage;
use crate::layout::Policy;
use crate::layout::{Layout, LayoutText};
use crate::mesh::MeshShape;
use std::sync::Arc;

/// How a module is split over a tensor-parallel axis.
///
/// For `y = x W + b` with `W` of shape `[in, out]`, as in Burn's `Linear`:
///
/// | style | `weight` | `bias` |
/// | --- | --- | --- |
/// | colwise | `[-, {tp}]` | `[{tp}]` |
/// | rowwise | `[{tp}, -]` | `[-]` |
/// | vocab on an `Embedding` (`[vocab, dim]`) | `[{tp}, -]` | |
/// | vocab on a `Linear` (the output head) | `[-, {tp}]` | `[{tp}]` |
/// | sequence, replicate | whole | whole |
/// | experts (`[experts, in, out]`, `[experts, out]`) | `[{ep}, -, -]` | `[{ep}, -]` |
///
/// # Source
/// Megatron-LM (arXiv:1909.08053, section 3) for colwise, rowwise and vocab; arXiv:2205.05198, section 4.2.2, for
/// sequence; GShard (arXiv:2006.16668, section 3.2) for experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Style {
    /// Output features are split; every rank computes some columns of the result.
    Colwise,
    /// Input features are split; every rank computes a term of a sum.
    Rowwise,
    /// The vocabulary is split: the rows of an embedding, the columns of an output head (logits stay sharded: loss
    /// parallel).
    Vocab,
    /// The module works on its part of the sequence; its own parameters are whole.
    Sequence,
    /// Whole over every tensor-parallel axis.
    Replicate,
    /// Weights of experts stacked along dim 0: each rank has some of the experts.
    Experts,
}

impl Style {
    /// Returns whether the style splits weights over its axis.
    pub fn splits(self) -> bool {
        matches!(
            self,
            Self::Colwise | Self::Rowwise | Self::Vocab | Self::Experts
        )
    }
}

/// What a parameter is to its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamRole {
    /// The matrix of a linear map, or a convolution's kernel.
    Weight,
    /// What is added after it.
    Bias,
    /// A table of vectors.
    Embedding,
    /// The scale or shift of a norm.
    Norm,
    /// Anything else.
    Other,
}

burn_dist_mesh::texts!(
    Style,
    "is not a style: use colwise, rowwise, vocab, sequence, replicate or experts",
    Colwise = "colwise",
    Rowwise = "rowwise",
    Vocab = "vocab",
    Sequence = "sequence",
    Replicate = "replicate",
    Experts = "experts"
);
burn_dist_mesh::texts!(
    ParamRole,
    "is not the role of a parameter: use weight, bias, embedding, norm or other",
    Weight = "weight",
    Bias = "bias",
    Embedding = "embedding",
    Norm = "norm",
    Other = "other"
);

/// Everything the planner must know about one parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParamSpec {
    /// Dotted path from the root of the model.
    pub path: String,
    /// The style of the module that holds it.
    pub style: Style,
    /// What it is to that module.
    pub role: ParamRole,
    /// Its tensor-parallel layout, without the axes it rests over.
    pub layout: Layout,
    /// The layout in which the module takes its input.
    pub input: Option<LayoutText>,
    /// The layout in which the module gives its output.
    pub output: Option<LayoutText>,
    /// The FSDP unit it belongs to: the path of the nearest module marked so, `""` for the whole model.
    pub unit: Option<String>,
    /// How that unit is trained.
    pub policy: Arc<Policy>,
    /// True if it rests in pieces over the axes made for that (FSDP), as its policy says.
    pub at_rest: bool,
    /// The stage that it belongs to, on a mesh with a pipeline axis.
    pub stage: Option<Stage>,
}

impl ParamSpec {
    /// Returns it as one line for people, keys in this order, options that are absent left out:
    /// `path=layers.0.attention.wq.weight;style=colwise;role=weight;layout=[-, {tp}];input=[-, -,
    /// -];unit=layers.0;checkpoint=full;precision=param=bf16,reduce=f32;strategy=zero2;stage=1;rest=yes`. Of the policy, it
    /// names what differs from the default.
    pub fn to_text(&self, mesh: &MeshShape) -> String {
        let mut text = format!(
            "path={};style={};role={};layout={}",
            self.path,
            self.style,
            self.role,
            self.layout.display(mesh)
        );
        let options = [
            ("input", self.input.as_ref().map(LayoutText::as_str)),
            ("output", self.output.as_ref().map(LayoutText::as_str)),
            ("unit", self.unit.as_deref()),
        ];
        for (key, value) in options {
            if let Some(value) = value {
                text.push_str(&format!(";{key}={value}"));
            }
        }
        let policy = self.policy.to_text(mesh);
        if !policy.is_empty() {
            text.push_str(&format!(";{policy}"));
        }
        if let Some(stage) = &self.stage {
            text.push_str(&format!(";stage={}", stage.index));
        }
        text.push_str(if self.at_rest {
            ";rest=yes"
        } else {
            ";rest=no"
        });
        text
    }

    /// Returns the layout in which it lies between uses.
    pub fn home(&self, mesh: &MeshShape) -> Layout {
        let mut layout = self.layout.clone();
        layout.normalize(mesh);
        layout.at_rest_over(mesh, &Owner::from(self).rest_axes(mesh))
    }

    /// Returns the spec of a cast of the parameter that has another shape: its first dims are split as those of the
    /// parameter, and further ones are whole.
    pub fn of_cast(spec: &Arc<Self>, shape: &[usize]) -> Arc<Self> {
        if spec.layout.has_shape(shape) {
            return spec.clone();
        }
        let layout = spec.layout.along_first_dims(shape);
        let cast = Self {
            layout,
            ..spec.as_ref().clone()
        };
        cast.into()
    }

    /// Returns the spec for the shape the parameter turned out to have.
    ///
    /// Burn states the shape of a lazy parameter before its mappers run, so only now are the sizes certain. The layout
    /// splits the same dims.
    pub fn for_shape(mut self, shape: &[usize]) -> Self {
        self.layout.resize(shape);
        self
    }
}

impl From<&ParamSpec> for Owner {
    fn from(spec: &ParamSpec) -> Self {
        Self {
            policy: spec.policy.clone(),
            is_whole: !spec.at_rest,
        }
    }
}
