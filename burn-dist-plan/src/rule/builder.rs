//! Factor notation: how rules are written down.
//!
//! `"... i k, ... k j -> ... i j"` names the dims of every input and output of an operation. A name is a letter, `-` is
//! a dim that stays whole, `...` stands for the dims that are not named (one factor each, aligned at the right), and
//! `*` for unnamed dims that stay whole. Sizes come from the tensors. What can be derived is derived: a dim of size one
//! has no factor, dims of one name but different sizes stay whole.

use super::{FactorKind, FactorRule, Held, Lowering, OpRule, Operand, PartialRule, Rule};
use crate::mesh::ReduceOp;

/// The global shapes of the operands of one operation.
#[derive(Clone, Debug, Default)]
pub struct Shapes<'a> {
    /// The shapes of its inputs, in order.
    pub inputs: Vec<&'a [usize]>,
    /// The shapes of its outputs, in order.
    pub outputs: Vec<&'a [usize]>,
}

/// The name of a dim in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Whole on every rank.
    Whole,
    /// An unnamed dim, numbered from the left of the operand that has the most of them.
    Dim(usize),
    /// A letter.
    Letter(char),
}

impl From<char> for Name {
    fn from(letter: char) -> Self {
        Name::Letter(letter)
    }
}

/// Returns the names of a tensor whose dims are all factors of their own.
pub fn dims(ndim: usize) -> Vec<Name> {
    (0..ndim).map(Name::Dim).collect()
}

/// Returns the names of a tensor as [`dims`] does, but for dim `dim`.
pub fn dims_but(ndim: usize, dim: usize, name: impl Into<Name>) -> Vec<Name> {
    let mut names = dims(ndim);
    names[dim] = name.into();
    names
}

struct Named {
    names: Vec<Name>,
    operand: Operand,
}

impl Named {
    fn new(names: Vec<Name>, shape: &[usize]) -> Self {
        assert_eq!(names.len(), shape.len(), "the rule names every dim");
        Self {
            names,
            operand: Operand {
                dims: Vec::new(),
                shape: shape.to_vec(),
                shape_only: false,
                passes: false,
            },
        }
    }
}

/// Builds a [`Rule`] from names.
///
/// `"... i k, ... k j -> ... i j"` names the dims of every input and output of an operation. A name is a letter, `-` is
/// a dim that stays whole, `...` stands for the dims that are not named (one factor each, aligned at the right), and
/// `*` for unnamed dims that stay whole.
///
/// A factor is [`FactorKind::Map`] unless set otherwise. A map factor that some output lacks would be lost in a split:
/// it stays whole.
pub struct RuleBuilder {
    inputs: Vec<Named>,
    outputs: Vec<Named>,
    kinds: Vec<(Name, FactorKind)>,
    blocks: Vec<(Name, usize)>,
    spaced: Vec<Name>,
    along: Vec<(Name, Name)>,
    contract: Option<ReduceOp>,
    broadcast: bool,
    partial: PartialRule,
    lowering: Lowering,
    elementwise: bool,
}

impl RuleBuilder {
    /// Starts from the names of every dim of every input and output.
    ///
    /// # Panics
    /// If a tensor or a dim has no name.
    pub fn named(tensors: &Shapes<'_>, inputs: Vec<Vec<Name>>, outputs: Vec<Vec<Name>>) -> Self {
        let side = |names: Vec<Vec<Name>>, tensors: &[&[usize]]| {
            assert_eq!(names.len(), tensors.len(), "the rule names every tensor");
            names
                .into_iter()
                .zip(tensors)
                .map(|(names, shape)| Named::new(names, shape))
                .collect()
        };
        Self {
            inputs: side(inputs, &tensors.inputs),
            outputs: side(outputs, &tensors.outputs),
            kinds: Vec::new(),
            blocks: Vec::new(),
            spaced: Vec::new(),
            along: Vec::new(),
            contract: None,
            broadcast: false,
            partial: PartialRule::Resolve,
            lowering: Lowering::Same,
            elementwise: false,
        }
    }

    /// Starts from text, see [`RuleBuilder`].
    ///
    /// # Panics
    /// If the text has no arrow, or a tensor or a dim has no name.
    pub fn notation(tensors: &Shapes<'_>, text: &str) -> Self {
        let (inputs, outputs) = text.split_once("->").expect("a rule has an arrow");
        let parse = |side: &str, tensors: &[&[usize]]| -> Vec<Vec<Name>> {
            side.split(',')
                .zip(tensors)
                .map(|(text, shape)| parse(text, shape.len()))
                .collect()
        };
        let (mut inputs, mut outputs) = (
            parse(inputs, &tensors.inputs),
            parse(outputs, &tensors.outputs),
        );
        align(inputs.iter_mut().chain(outputs.iter_mut()));
        Self::named(tensors, inputs, outputs)
    }

    /// Starts from the same notation for every input and output.
    pub fn uniform(tensors: &Shapes<'_>, text: &str) -> Self {
        let side = |count: usize| vec![text; count].join(", ");
        let text = format!(
            "{} -> {}",
            side(tensors.inputs.len()),
            side(tensors.outputs.len())
        );
        Self::notation(tensors, &text)
    }

    /// Sets what may be done with a factor.
    pub fn kind(mut self, name: impl Into<Name>, kind: FactorKind) -> Self {
        self.kinds.push((name.into(), kind));
        self
    }

    /// `block` neighbours along a factor are split together; an operand may have a dim of blocks for it.
    pub fn blocks(mut self, name: impl Into<Name>, block: usize) -> Self {
        self.blocks.push((name.into(), block));
        self
    }

    /// A rank's part of a factor is [spaced](Held::Spaced): the operation of a rank depends on where that lies.
    pub fn spaced(mut self, name: impl Into<Name>) -> Self {
        self.spaced.push(name.into());
        self
    }

    /// A factor is split with another one of its size, if at all: see [`FactorRule::along`].
    pub fn along(mut self, name: impl Into<Name>, with: impl Into<Name>) -> Self {
        self.along.push((name.into(), with.into()));
        self
    }

    /// Factors that no output has are reduced with `op`.
    pub fn contract(mut self, op: ReduceOp) -> Self {
        self.contract = Some(op);
        self
    }

    /// Dims of size one stretch over the larger dims of the same name.
    pub fn broadcast(mut self) -> Self {
        self.broadcast = true;
        self
    }

    /// Reads only the shape of input `index`.
    pub fn shape_only(mut self, index: usize) -> Self {
        self.inputs[index].operand.shape_only = true;
        self
    }

    /// Linear in the first input.
    pub fn linear(self) -> Self {
        self.passing(PartialRule::Linear, &[0])
    }

    /// Passes elements of the first input on unchanged.
    pub fn moves(self) -> Self {
        self.passing(PartialRule::Move, &[0])
    }

    /// Linear in these inputs together; in none at all if there are none.
    pub fn joint_linear(self, inputs: &[usize]) -> Self {
        self.passing(PartialRule::JointLinear, inputs)
    }

    /// Passes elements of these inputs on unchanged.
    pub fn joint_moves(self, inputs: &[usize]) -> Self {
        self.passing(PartialRule::JointMove, inputs)
    }

    fn passing(mut self, partial: PartialRule, inputs: &[usize]) -> Self {
        if !inputs.is_empty() {
            self.partial = partial;
        }
        for &index in inputs {
            self.inputs[index].operand.passes = true;
        }
        self
    }

    /// Sets how the local op differs from the global one.
    pub fn lowering(mut self, lowering: Lowering) -> Self {
        self.lowering = lowering;
        self
    }

    /// Computes each element from the elements at the same place, or from that of its block: marks the rule elementwise
    /// if no operand is stretched, other than single elements. What a block is made of, or becomes, may be a last
    /// dim of its own.
    pub fn elementwise(mut self) -> Self {
        let output = &self.outputs[0];
        let is_alike = |input: &Named| {
            let sizes = input.operand.shape.iter().zip(&output.operand.shape);
            let mut dims = input.names.iter().zip(sizes);
            let mut in_blocks = || {
                let common = input.names.len().min(output.names.len());
                let more = input.names[common..].iter().chain(&output.names[common..]);
                input.names[..common] == output.names[..common]
                    && more.into_iter().all(|name| *name == Name::Whole)
                    && dims.all(|(&name, (&size, &of))| {
                        let in_blocks = self.is_blocks(name, size, of);
                        size == of || in_blocks || self.is_blocks(name, of, size)
                    })
            };
            input.operand.shape == output.operand.shape || in_blocks()
        };
        self.elementwise = self
            .inputs
            .iter()
            .all(|input| is_alike(input) || input.operand.shape.iter().all(|&size| size == 1));
        self.broadcast()
    }

    /// Returns whether a dim has the blocks of a factor with `of` elements.
    fn is_blocks(&self, name: Name, size: usize, of: usize) -> bool {
        let mut blocks = self.blocks.iter();
        blocks.any(|(other, block)| *other == name && size == of.div_ceil(*block))
    }

    /// Returns the rule.
    ///
    /// # Panics
    /// If there are more than 255 factors.
    pub fn build(mut self) -> OpRule {
        let mut factors: Vec<FactorRule> = Vec::new();
        let mut index_of: Vec<(Name, u8)> = Vec::new();
        let mut names = self.all_names();
        // What is split along another factor comes after it.
        names.sort_by_key(|name| self.with(*name).is_some());
        for name in names {
            if let Some(mut factor) = self.factor(name) {
                if let Some(with) = self.with(name) {
                    let found = index_of.iter().find(|(other, _)| *other == with);
                    let same = |with: &u8| factors[usize::from(*with)].size == factor.size;
                    factor.along = found.map(|(_, with)| *with).filter(same);
                    if factor.along.is_none() {
                        continue;
                    }
                }
                let index = u8::try_from(factors.len()).expect("an op has few dims");
                index_of.push((name, index));
                factors.push(factor);
            }
        }
        for Named { names, operand } in self.inputs.iter_mut().chain(&mut self.outputs) {
            operand.dims = names
                .iter()
                .zip(&operand.shape)
                .map(|(name, &size)| {
                    let (_, index) = index_of.iter().find(|(other, _)| other == name)?;
                    let factor: &FactorRule = &factors[*index as usize];
                    // A stretched dim is whole on every rank.
                    let has = size == factor.size || size == factor.size.div_ceil(factor.block);
                    has.then_some(*index)
                })
                .collect();
        }
        let operands = |side: Vec<Named>| side.into_iter().map(|named| named.operand).collect();
        OpRule::Factors(Rule {
            factors,
            inputs: operands(self.inputs),
            outputs: operands(self.outputs),
            partial: self.partial,
            lowering: self.lowering,
            elementwise: self.elementwise,
        })
    }

    /// All names in order of appearance, each once.
    fn all_names(&self) -> Vec<Name> {
        let mut all = Vec::new();
        let operands = self.outputs.iter().chain(&self.inputs);
        for &name in operands.flat_map(|operand| &operand.names) {
            if name != Name::Whole && !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }

    /// Returns the factor that a factor is split along.
    fn with(&self, name: Name) -> Option<Name> {
        let found = self.along.iter().find(|(other, _)| *other == name);
        found.map(|(_, with)| *with)
    }

    /// Returns the factor of a name, or `None` if its dims stay whole.
    fn factor(&self, name: Name) -> Option<FactorRule> {
        let size = self.size(name).filter(|&size| size > 1)?;
        let in_outputs = |all: bool| {
            let mut has = self.outputs.iter().map(|output| {
                let mut dims = output.names.iter().zip(&output.operand.shape);
                dims.any(|(&other, &dim)| {
                    other == name && (dim == size || self.is_blocks(name, dim, size))
                })
            });
            if all {
                has.all(|has| has)
            } else {
                has.any(|has| has)
            }
        };
        let explicit = self.kinds.iter().find(|(other, _)| *other == name);
        let kind = match (explicit, self.contract) {
            (Some(&(_, kind)), _) => kind,
            (None, Some(op)) if !in_outputs(false) => FactorKind::Reduce(op),
            (None, _) => FactorKind::Map,
        };
        match kind {
            FactorKind::Whole => None,
            FactorKind::Map if !in_outputs(true) && self.with(name).is_none() => None,
            kind => {
                let block = self.blocks.iter().find(|(other, _)| *other == name);
                let block = block.map_or(1, |(_, block)| *block);
                Some(FactorRule {
                    size,
                    kind,
                    block,
                    held: match kind {
                        // Ranks tell from its range which indices are theirs.
                        FactorKind::Index => Held::Range,
                        _ if self.spaced.contains(&name) => Held::Spaced,
                        _ => Held::Any,
                    },
                    along: None,
                })
            }
        }
    }

    /// Returns the size of a name, or `None` if its dims contradict each other.
    fn size(&self, name: Name) -> Option<usize> {
        let mut found = self.elements(name);
        for Named { names, operand } in self.inputs.iter().chain(&self.outputs) {
            for (_, &size) in names
                .iter()
                .zip(&operand.shape)
                .filter(|(n, _)| **n == name)
            {
                match found {
                    None => found = Some(size),
                    Some(other) if other == size || self.is_blocks(name, size, other) => {}
                    Some(1) if self.broadcast => found = Some(size),
                    Some(_) if self.broadcast && size == 1 => {}
                    Some(_) => return None,
                }
            }
        }
        found
    }

    /// The elements of a factor of blocks: more than blocks.
    fn elements(&self, name: Name) -> Option<usize> {
        self.blocks.iter().find(|(other, _)| *other == name)?;
        let all = self.inputs.iter().chain(&self.outputs);
        let dims = all.flat_map(|named| named.names.iter().zip(&named.operand.shape));
        let sizes = dims.filter(|(other, _)| **other == name);
        sizes.map(|(_, &size)| size).max()
    }
}

/// Parses the notation of one tensor with `ndim` dims.
fn parse(text: &str, ndim: usize) -> Vec<Name> {
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let is_many = |token: &str| token == "..." || token == "*";
    let unnamed = ndim + tokens.iter().filter(|token| is_many(token)).count() - tokens.len();
    let mut names = Vec::with_capacity(ndim);
    for token in tokens {
        match token {
            "..." => names.extend((0..unnamed).map(Name::Dim)),
            "*" => names.extend(vec![Name::Whole; unnamed]),
            "-" => names.push(Name::Whole),
            letter => names.extend(letter.chars().map(Name::Letter)),
        }
    }
    names
}

/// Renumbers the dims under `...` such that they are aligned at the right.
fn align<'a>(operands: impl Iterator<Item = &'a mut Vec<Name>>) {
    let mut operands: Vec<_> = operands.collect();
    let unnamed = |names: &[Name]| names.iter().filter(|n| matches!(n, Name::Dim(_))).count();
    let most = operands.iter().map(|names| unnamed(names)).max();
    for names in &mut operands {
        let shift = most.unwrap_or(0) - unnamed(names);
        for name in names.iter_mut() {
            if let Name::Dim(dim) = name {
                *dim += shift;
            }
        }
    }
}
