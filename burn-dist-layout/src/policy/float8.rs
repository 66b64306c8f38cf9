//! Which layers compute in float8, and how their operands are scaled.

use std::fmt;
use std::str::FromStr;

use burn_dist_mesh::TextError;

/// A float type of 8 bits (arXiv:2209.05433).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// 4 bits of exponent, 3 of mantissa; no infinities; up to 448.
    E4M3,
    /// 5 bits of exponent, 2 of mantissa; up to 57,344.
    E5M2,
}

impl Fp8 {
    /// The largest finite value.
    pub const fn max(self) -> f32 {
        match self {
            Self::E4M3 => 448.0,
            Self::E5M2 => 57344.0,
        }
    }
}

burn_dist_mesh::texts!(Fp8, NO_FLOAT8, E4M3 = "e4m3", E5M2 = "e5m2");

/// The elements that share a scale. Scales are of the global tensor: no layout changes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// The whole tensor.
    #[default]
    Tensorwise,
    /// The terms of one element of a product: the rows of its left operand, the columns of its right one. Scales
    /// are powers of two.
    Rowwise,
    /// Tiles of 128 elements of activations and gradients along what is added up, blocks of 128 x 128 of weights
    /// (DeepSeek-V3). Scales are powers of two.
    Blockwise128,
}

burn_dist_mesh::texts!(
    Scaling,
    NO_FLOAT8,
    Tensorwise = "tensorwise",
    Rowwise = "rowwise",
    Blockwise128 = "blockwise128"
);

/// The tensor that scales are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The global one: no mesh and no layout changes a value.
    #[default]
    Global,
    /// The part that a rank holds when it multiplies. No maximum is reduced, and the same program has other values on
    /// another mesh.
    Rank,
}

burn_dist_mesh::texts!(Scope, NO_FLOAT8, Global = "global", Rank = "rank");

const NO_FLOAT8: &str = "is no way to compute in float8: use tensorwise, rowwise or blockwise128, or \
    tensorwise,scope=rank,gather=off,forward=e4m3,gradients=e5m2,skip=layers.0|**.wo";

/// Linear layers in float8, with a scale that is found anew for every tensor (dynamic scaling).
///
/// A layer's product and the two products of its backward take operands in 8 bits, add up in f32, and give the type
/// that the layer has without it. Left as they are: the output head (a layer whose result leads to no other product),
/// sizes that are no multiples of 16, and what [`skip`](Self::skip) names; `explain` lists them. Master weights,
/// optimizer state and everything between layers stay as [`Precision`](super::Precision) says.
///
/// Text form: `tensorwise`, `blockwise128`, or `rowwise,forward=e4m3,gradients=e5m2`.
///
/// # Communication
/// Weights at rest are gathered in 8 bits ([`gather`](Self::gather)), after one all-reduce of the absolute maxima of
/// the weights of a step. A tensorwise scale of an activation or gradient takes an all-reduce of one element over the
/// axes that split it; a rowwise one of an element per row, if the rows are split. Blocks take none: a split that cuts
/// one is not chosen. Scales of what a rank holds ([`Scope::Rank`]) take none at all.
///
/// ```
/// use burn_dist_layout::policy::{Float8, Fp8, Scaling};
///
/// let float8 = Float8::new(Scaling::Tensorwise);
/// assert_eq!("tensorwise".parse(), Ok(float8.clone()));
/// assert_eq!("tensorwise,gradients=e4m3".parse(), Ok(float8.gradients(Fp8::E4M3)));
/// ```
///
/// # Source
/// The recipes of torchao and torchtitan; formats of arXiv:2209.05433; blocks of arXiv:2412.19437, section 3.3.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Float8 {
    /// The elements that share a scale.
    pub scaling: Scaling,
    /// The tensor that scales are of.
    pub scope: Scope,
    /// True if weights at rest are gathered in 8 bits; not those with scales of what a rank holds, nor with rowwise
    /// scales, which the forward and the backward use in different ones, and not those whose blocks straddle shards. It
    /// changes no value.
    pub gather: bool,
    /// The type of activations and weights.
    pub forward: Fp8,
    /// The type of gradients.
    pub gradients: Fp8,
    /// Patterns of modules that are left as they are.
    pub skip: Vec<String>,
}

impl Float8 {
    /// Returns the usual recipe of a scaling: gradients in e5m2 if one scale serves a whole tensor, else in e4m3.
    pub fn new(scaling: Scaling) -> Self {
        Self {
            scaling,
            scope: Scope::Global,
            gather: true,
            forward: Fp8::E4M3,
            gradients: match scaling {
                Scaling::Tensorwise => Fp8::E5M2,
                Scaling::Rowwise | Scaling::Blockwise128 => Fp8::E4M3,
            },
            skip: Vec::new(),
        }
    }

    /// Sets of which tensor scales are.
    pub fn scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Sets whether weights at rest are gathered in 8 bits.
    pub fn gather(self, gather: bool) -> Self {
        Self { gather, ..self }
    }

    /// Sets the type of activations and weights.
    pub fn forward(self, forward: Fp8) -> Self {
        Self { forward, ..self }
    }

    /// Sets the type of gradients.
    pub fn gradients(self, gradients: Fp8) -> Self {
        Self { gradients, ..self }
    }

    /// Leaves the modules that a pattern names as they are; in a pattern, `*` stands for any characters of one segment
    /// of a path, and `**` for any number of segments. One that names no module and no parameter is refused where a plan
    /// is applied to a model.
    pub fn skip(mut self, pattern: impl Into<String>) -> Self {
        self.skip.push(pattern.into());
        self
    }

    /// Returns whether scales are rounded down to powers of two, which makes scaling exact.
    pub fn has_powers_of_two(&self) -> bool {
        self.scaling != Scaling::Tensorwise
    }
}

impl fmt::Display for Float8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::new(self.scaling);
        write!(f, "{}", self.scaling)?;
        if self.scope != usual.scope {
            write!(f, ",scope={}", self.scope)?;
        }
        if !self.gather {
            f.write_str(",gather=off")?;
        }
        if self.forward != usual.forward {
            write!(f, ",forward={}", self.forward)?;
        }
        if self.gradients != usual.gradients {
            write!(f, ",gradients={}", self.gradients)?;
        }
        if !self.skip.is_empty() {
            write!(f, ",skip={}", self.skip.join("|"))?;
        }
        Ok(())
    }
}

impl FromStr for Float8 {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || TextError::new(text, NO_FLOAT8);
        let mut items = text.split(',').map(str::trim);
        let scaling = items.next().unwrap_or_default();
        let mut float8 = Self::new(scaling.parse().map_err(|_| error())?);
        let mut seen = Vec::new();
        for item in items {
            let (key, value) = item.split_once('=').ok_or_else(error)?;
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(error());
            }
            seen.push(key);
            match (key, value) {
                ("scope", _) => float8.scope = value.parse().map_err(|_| error())?,
                ("gather", "on") => float8.gather = true,
                ("gather", "off") => float8.gather = false,
                ("forward", _) => float8.forward = value.parse().map_err(|_| error())?,
                ("gradients", _) => float8.gradients = value.parse().map_err(|_| error())?,
                ("skip", _) if !value.is_empty() => {
                    float8.skip = value.split('|').map(Into::into).collect();
                }
                _ => return Err(error()),
            }
        }
        Ok(float8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_reads_back() {
        for scaling in [Scaling::Tensorwise, Scaling::Rowwise, Scaling::Blockwise128] {
            for (gather, scope) in [
                (true, Scope::Global),
                (false, Scope::Global),
                (true, Scope::Rank),
            ] {
                for forward in [Fp8::E4M3, Fp8::E5M2] {
                    for gradients in [Fp8::E4M3, Fp8::E5M2] {
                        let float8 = Float8::new(scaling).gather(gather).scope(scope);
                        let float8 = float8.forward(forward).gradients(gradients);
                        assert_eq!(float8.to_string().parse(), Ok(float8.clone()));
                        let float8 = float8.skip("layers.0").skip("**.wo");
                        assert_eq!(float8.to_string().parse(), Ok(float8));
                    }
                }
            }
        }
        assert_eq!(Float8::new(Scaling::Rowwise).to_string(), "rowwise");
    }

    #[test]
    fn errors_name_what_is_no_float8() {
        for text in [
            "",
            "delayed",
            "blockwise",
            "e4m3",
            "tensorwise,",
            "tensorwise,gather",
            "tensorwise,gather=maybe",
            "tensorwise,scope=node",
            "rowwise,forward=bf16",
            "rowwise,forward=e4m3,forward=e4m3",
            "rowwise,skip=",
            "gather=on",
        ] {
            let error = text.parse::<Float8>().expect_err(text).to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("use tensorwise"),
                "{error}"
            );
        }
    }
}
