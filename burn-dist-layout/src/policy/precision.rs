//! The types that a unit computes and reduces in.

use std::fmt;
use std::str::FromStr;

use burn_dist_mesh::{DType, TextError};

/// A float type of 16 or 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE 754 single.
    #[default]
    F32,
    /// IEEE 754 half: 5 bits of exponent. Small gradients vanish in it.
    F16,
    /// bfloat16: the exponent of a single, 8 bits of precision.
    BF16,
}

impl Float {
    /// Returns the element type of this name.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
        }
    }
}

const NO_PRECISION: &str = "is not a precision: use bf16, f16 or f32, or param=bf16,reduce=f32,output=f32, where \
    reduce \
    is f32 or what param is";

burn_dist_mesh::texts!(Float, NO_PRECISION, F32 = "f32", F16 = "f16", BF16 = "bf16");

/// Mixed precision of a unit, over parameters that rest and are updated in f32.
///
/// Products (`matmul`, linear maps, convolutions, attention, embeddings) run in [`param`](Self::param), and so does
/// what only moves or combines their results. Sums, means, exponentials, logarithms and powers run in f32, and with
/// them softmax, norms (whose scales are gathered in f32), losses and the gradients of embeddings; so does whatever
/// meets a tensor in f32. Values that the host reads or that outlive a window have the type they were recorded with:
/// master weights, gradients, optimizer state.
///
/// Text form: `bf16`, or `param=bf16,reduce=bf16,output=f32`.
///
/// # Communication
/// Parameters are gathered in `param`, half the bytes of f32, and gradients are reduced in [`reduce`](Self::reduce).
///
/// ```
/// use burn_dist_layout::policy::{Float, Precision};
///
/// let precision = Precision::new(Float::BF16);
/// assert_eq!("bf16".parse(), Ok(precision));
/// assert_eq!("param=bf16,reduce=bf16".parse(), Ok(precision.reduce(Float::BF16)));
/// ```
///
/// # Source
/// Mixed precision training, arXiv:1710.03740; the three types are those of PyTorch FSDP2's `MixedPrecisionPolicy`, the
/// operations in f32 those of its autocast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Precision {
    /// The type that parameters are gathered and multiplied in; f32 computes the unit as it was recorded.
    pub param: Float,
    /// The type that gradients of parameters are summed over ranks in: f32 (the default), or `param`.
    pub reduce: Float,
    /// The type that values are cast to which leave the unit for another one; `None` leaves them as they come.
    pub output: Option<Float>,
}

impl Precision {
    /// Computes in `param`, reduces in f32.
    pub fn new(param: Float) -> Self {
        Self {
            param,
            reduce: Float::F32,
            output: None,
        }
    }

    /// Sets what gradients are reduced in.
    pub fn reduce(self, reduce: Float) -> Self {
        Self { reduce, ..self }
    }

    /// Sets what leaves the unit.
    pub fn output(self, output: Float) -> Self {
        let output = Some(output);
        Self { output, ..self }
    }

    /// Returns whether `reduce` is one of the two types it can be.
    pub fn is_possible(&self) -> bool {
        self.reduce == Float::F32 || self.reduce == self.param
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "param={},reduce={}", self.param, self.reduce)?;
        match self.output {
            Some(output) => write!(f, ",output={output}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Precision {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || TextError::new(text, NO_PRECISION);
        if !text.contains('=') {
            return text.parse().map(Self::new).map_err(|_| error());
        }
        let (mut param, mut reduce, mut output) = (None, None, None);
        for item in text.split(',') {
            let (key, value) = item.split_once('=').ok_or_else(error)?;
            let place = match key.trim() {
                "param" => &mut param,
                "reduce" => &mut reduce,
                "output" => &mut output,
                _ => return Err(error()),
            };
            if place
                .replace(value.trim().parse().map_err(|_| error())?)
                .is_some()
            {
                return Err(error());
            }
        }
        let precision = Self {
            param: param.ok_or_else(error)?,
            reduce: reduce.unwrap_or(Float::F32),
            output,
        };
        match precision.is_possible() {
            true => Ok(precision),
            false => Err(error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_reads_back() {
        let floats = [Float::F32, Float::F16, Float::BF16];
        for param in floats {
            for reduce in [Float::F32, param] {
                for output in [None, Some(Float::F32), Some(Float::F16), Some(Float::BF16)] {
                    let precision = Precision {
                        param,
                        reduce,
                        output,
                    };
                    assert_eq!(precision.to_string().parse(), Ok(precision));
                }
            }
        }
        assert_eq!("bf16".parse(), Ok(Precision::new(Float::BF16)));
    }

    #[test]
    fn errors_name_what_is_no_precision() {
        for text in [
            "",
            "bf8",
            "reduce=f32",
            "param=bf16,param=bf16",
            "param=bf16,reduce=f16",
            "param=bf16,",
            "speed=f16",
        ] {
            let error = text.parse::<Precision>().expect_err(text).to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("use bf16"),
                "{error}"
            );
        }
    }
}
