//! Traits of operations: what is known of one beyond its rule.

/// How an operation uses indices into the first of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Reads there.
    Read,
    /// Writes there.
    Write,
}

/// A layer whose module may ask for the layouts of its input and its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// `y = x W`: the weight is input 1, and the layout of input 0 may be asked for too.
    Linear,
    /// Rows of a table: the weight is input 0.
    Lookup,
}

/// What an operation is to the layers of a model, as far as it tells whose gradient is whose. The numbers are those of
/// inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjoint {
    /// A layer that is linear in `weight`, applied to `x`.
    Forward {
        /// What it is applied to.
        x: usize,
        /// What it is linear in.
        weight: usize,
    },
    /// The gradient of a layer's input.
    Input {
        /// What the layer is linear in.
        weight: usize,
        /// The gradient of the layer's result.
        gradient: usize,
    },
    /// The gradient of a layer's weight.
    Weight {
        /// What the layer is applied to.
        x: usize,
        /// The gradient of the layer's result.
        gradient: usize,
    },
    /// The gradient of a weight that is an operand, if only for its shape.
    Named {
        /// That operand.
        weight: usize,
    },
    /// A read of a table at indices.
    Read {
        /// The table.
        table: usize,
        /// The indices.
        indices: usize,
    },
    /// A sum at indices: the gradient of such a read.
    Written {
        /// The indices.
        indices: usize,
    },
}

/// What an operation costs a model, when it is told whether to make its result again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// A linear layer, a convolution or attention in one operation.
    Layer,
    /// A product of two matrices, the last two dims of its operands: `[.., i, k]` and `[.., k, j]`.
    Product,
    /// Anything else.
    #[default]
    Other,
}

/// How an operation picks its float type in mixed precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatClass {
    /// Products: in 16 bits if any operand is.
    Compute,
    /// Moves elements: in the type of what it moves; a parameter moves in the type of its unit.
    Move,
    /// Combines elements: in 16 bits if all operands are.
    Follow,
    /// Loses too much in 16 bits: in f32.
    Single,
    /// Makes values from nothing, which take the type of their use.
    Create,
    /// As recorded.
    #[default]
    Recorded,
}

/// What is known of an operation beyond its rule, named once by whoever defines it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// The dim of the first input that it reads or writes at indices, if every index is along that one dim.
    pub indexing: Option<(Indexing, usize)>,
    /// The dim along which it joins its inputs.
    pub joins: Option<usize>,
    /// The layer that it is.
    pub layer: Option<Layer>,
    /// What tells whose gradient is whose.
    pub adjoint: Option<Adjoint>,
    /// True if it makes ones: if it makes one element, a backward begins there.
    pub makes_ones: bool,
    /// True if it makes the gradient of what a layer is linear in: its weight or its bias.
    pub makes_weight_gradient: bool,
    /// True if it is the same values in another type.
    pub is_cast: bool,
    /// True if it is such a cast to 8 bits, with a scale.
    pub quantizes: bool,
    /// True if it is such a cast from bytes that hold their scales too, of another shape: what it makes takes several
    /// times the memory, so it is made where it is used, and again in another visit.
    pub unpacks: bool,
    /// True if it finds out what a cast of its input needs to know: that is no use of a parameter by its unit.
    pub measures: bool,
    /// The input that is in f32 whatever type it computes in: what another operation found out over many elements.
    pub statistic_input: Option<usize>,
    /// The output that is in f32 whatever type it computes in.
    pub statistic_output: Option<usize>,
    /// True if its steps may shift blocks between ranks.
    pub shifts: bool,
    /// True if it draws random numbers.
    pub is_random: bool,
    /// True if its result looks at the memory of its first input.
    pub is_view: bool,
    /// True if it swaps the last two dims.
    pub turns: bool,
    /// True if it adds up the elements along some dims, which stay with size one.
    pub adds_up: bool,
    /// True if it writes the second input over a part of the first.
    pub assigns: bool,
    /// True if its result is a maximum over a dim: what it is taken from is about to be exponentiated.
    pub is_maximum: bool,
    /// True if it takes its second input from its first.
    pub is_difference: bool,
    /// See [`FloatClass`].
    pub float_class: FloatClass,
    /// See [`Work`].
    pub work: Work,
}
