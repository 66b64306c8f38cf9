//! The options in which the families of a decoder differ.

use std::collections::BTreeSet;
use std::fmt;

/// The families of published decoders, each with a form of `config.json` of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 to 3.3, and SmolLM2.
    #[default]
    Llama,
    /// Mistral: a window of keys.
    Mistral,
    /// Qwen2 and 2.5: biases of queries, keys and values.
    Qwen2,
    /// Qwen3: norms of queries and keys, and heads of their own width.
    Qwen3,
    /// SmolLM3: some layers without rotary positions.
    SmolLm3,
    /// Mixtral: experts.
    Mixtral,
    /// The mixtures of Qwen3.
    Qwen3Moe,
}

/// The options in which the families of a decoder differ. The default is Llama.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// The family in whose form the model is written.
    pub family: Family,
    /// The width of a head, if heads do not share the model width.
    pub head_dim: Option<usize>,
    /// The products of attention that have biases.
    pub biases: Biases,
    /// True if the queries and keys of each head are normalised before they are turned.
    pub head_norms: bool,
    /// The layers whose queries see only so many keys.
    pub window: Option<Window>,
    /// The layers without rotary positions.
    pub unturned: BTreeSet<usize>,
    /// The experts that take the place of each feed-forward layer.
    pub experts: Option<Experts>,
}

/// Feed-forward layers side by side, of which a router chooses some for each token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub num: usize,
    /// How many a token is sent to.
    pub top_k: usize,
    /// The width inside each.
    pub hidden_dim: usize,
}

/// Which products of attention have biases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Biases {
    /// None.
    #[default]
    None,
    /// Products of queries, keys and values.
    Inputs,
    /// And that of the output.
    All,
}

/// A window of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// How many keys a query sees at most, up to its own position.
    pub keys: usize,
    /// The layers that have it.
    pub layers: BTreeSet<usize>,
}

impl Options {
    /// How many keys a query of a layer sees at most, up to its own position; all without a number.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let window = self.window.as_ref();
        window
            .filter(|window| window.layers.contains(&layer))
            .map(|window| window.keys)
    }

    /// All that tells it from Llama, as names and values.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let Self {
            family: _,
            head_dim,
            biases,
            head_norms,
            window,
            unturned,
            experts,
        } = self;
        let layers = |layers: &BTreeSet<usize>| {
            let layers: Vec<String> = layers.iter().map(usize::to_string).collect();
            layers.join(", ")
        };
        let facts = [
            ("width of heads", head_dim.map(|width| width.to_string())),
            (
                "biases",
                (*biases != Biases::None).then(|| biases.to_string()),
            ),
            (
                "norms of queries and keys",
                head_norms.then(|| "yes".to_string()),
            ),
            (
                "window",
                window
                    .as_ref()
                    .map(|it| format!("{} keys in layers {}", it.keys, layers(&it.layers))),
            ),
            (
                "layers without rotary positions",
                (!unturned.is_empty()).then(|| layers(unturned)),
            ),
            (
                "experts",
                experts
                    .as_ref()
                    .map(|it| format!("{} of {}, of width {}", it.top_k, it.num, it.hidden_dim)),
            ),
        ];
        let facts = facts.into_iter();
        facts
            .filter_map(|(what, value)| Some((what, value?)))
            .collect()
    }
}

impl fmt::Display for Biases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Inputs => "of queries, keys and values",
            Self::All => "of attention",
        })
    }
}
