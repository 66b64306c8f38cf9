//! The tensors of LoRA's factors, as PEFT names them.

/// The names that PEFT's wrappers put before that of every layer.
pub(super) const WRAPPERS: [&str; 2] = ["base_model", "model"];

/// One of the two factors of LoRA beside a linear layer.
///
/// ```
/// use burn_dist_checkpoint::hf::Factor;
/// let name = Factor::A.tensor("layers.0.up");
/// assert_eq!(name, "base_model.model.layers.0.up.lora_A.weight");
/// assert_eq!(Factor::of_tensor(&name), Some((Factor::A, "layers.0.up")));
/// ```
///
/// # Source
/// `peft/utils/save_and_load.py`, `get_peft_model_state_dict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Factor {
    /// The one that is multiplied with the input: `[rank, inputs]` in a file.
    A,
    /// The one that makes the output: `[outputs, rank]` in a file.
    B,
}

impl Factor {
    /// Both.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// Its name in a file.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::A => "lora_A",
            Self::B => "lora_B",
        }
    }

    /// Its name in a module of Burn, beside `lora`.
    pub(super) fn own_name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// Returns the name of the tensor, for a layer of this name.
    pub fn tensor(self, layer: &str) -> String {
        let [outer, inner] = WRAPPERS;
        format!("{outer}.{inner}.{layer}.{}.weight", self.name())
    }

    /// Returns which factor a tensor is, and of which layer; none if it is no factor.
    pub fn of_tensor(tensor: &str) -> Option<(Self, &str)> {
        let mut layer = tensor.strip_suffix(".weight")?;
        for wrapper in WRAPPERS {
            layer = layer.strip_prefix(wrapper)?.strip_prefix('.')?;
        }
        let (layer, name) = layer.rsplit_once('.')?;
        let factor = Self::ALL.into_iter().find(|it| it.name() == name)?;
        Some((factor, layer))
    }
}
