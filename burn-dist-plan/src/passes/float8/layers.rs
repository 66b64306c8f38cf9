//! Which linear layers of a window compute in float8.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

use crate::facts::Facts;
use crate::ir::{Adjoint, BLOCK, Layer, Op, ParamSpec, Phase, Product, ValueIndex, Window, Work};
use crate::mesh::{DType, MeshShape};
use crate::pattern::Pattern;
use crate::policy::{Float8, Scaling, Scope};

/// What is a multiple of in the sizes of a layer: the tensor cores take nothing else (torchao).
const MULTIPLE: usize = 16;

/// Why a product is left as it is that is no layer.
const PLAIN_PRODUCT: &str = "it is recorded as a product of two matrices, and not as a layer";

/// A linear layer whose unit asks for float8.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Float8Layer {
    /// The path of its weight.
    pub path: String,
    /// Why it is left as it is, if it is.
    pub skipped: Option<String>,
    /// Why its weight is gathered before it is quantised, though it is split and its unit asks for 8 bits, if it is.
    pub gathered_before: Option<String>,
}

/// A product of a layer.
#[derive(Clone, Debug)]
pub(super) struct LayerProduct {
    pub product: Product,
    pub spec: Arc<ParamSpec>,
    /// True if its weight is quantised where it rests.
    pub gathers: bool,
}

impl LayerProduct {
    /// Returns how the layer computes.
    pub(super) fn float8(&self) -> &Float8 {
        let float8 = self.spec.policy.float8.as_ref();
        float8.expect("a product that is left as it is, is none here")
    }
}

/// The layers of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    /// In order of first use.
    pub layers: Vec<Float8Layer>,
    /// For each operation, if it is a product in float8.
    pub(super) products: Vec<Option<LayerProduct>>,
}

impl Layers {
    /// Returns whether anything is computed in float8.
    pub(crate) fn has_products(&self) -> bool {
        self.products.iter().any(Option::is_some)
    }
}

fn input<O: Op>(op: &O, at: usize) -> ValueIndex {
    let operand = op.inputs().nth(at);
    operand.expect("an operation has the operands it names").id
}

/// Returns which product of a linear layer an operation is.
fn product<O: Op>(op: &O) -> Option<Product> {
    let traits = op.traits();
    match traits.adjoint? {
        Adjoint::Forward { .. } if traits.layer == Some(Layer::Linear) => Some(Product::Forward),
        Adjoint::Input { .. } => Some(Product::Input),
        Adjoint::Weight { .. } => Some(Product::Weight),
        _ => None,
    }
}

/// Returns the weight of a product that is recorded as one of any two matrices, if its unit asks for float8.
fn plain_product<'a, O: Op>(op: &O, facts: &'a Facts) -> Option<&'a Arc<ParamSpec>> {
    let is_plain = op.traits().work == Work::Product;
    let weight = op.inputs().nth(1).filter(|_| is_plain)?;
    let spec = facts.parameter(weight.id)?;
    spec.policy.float8.is_some().then_some(spec)
}

/// Finds the products whose units ask for float8.
pub(crate) fn layers<O: Op>(window: &Window<O>, facts: &Facts, mesh: &MeshShape) -> Layers {
    let heads = Heads::new(window, facts);
    let unpacks = window.ops.iter().filter(|op| op.traits().unpacks);
    let unpacked: HashSet<ValueIndex> = unpacks.flat_map(Op::outputs).map(|out| out.id).collect();
    let mut layers: Vec<Float8Layer> = Vec::new();
    let mut by_path: HashMap<&str, usize> = HashMap::new();
    let of_op = |op: &O| {
        let product = product(op);
        let spec = match product {
            None => plain_product(op, facts),
            Some(Product::Forward) => facts.parameter(input(op, 1)),
            Some(Product::Input) => facts.parameter(input(op, 0)),
            Some(Product::Weight) => facts.roles[op.outputs().next()?.id as usize].belongs_to(),
        };
        let spec = spec?;
        let float8 = spec.policy.float8.as_ref()?;
        let layer = *by_path.entry(&spec.path).or_insert_with(|| {
            let is_head = || product.is_some_and(|product| heads.is_head(op, product, spec));
            let plain = || product.is_none().then(|| PLAIN_PRODUCT.into());
            let rests_in_8_bits = || {
                let is_unpacked = op.inputs().any(|input| unpacked.contains(&input.id));
                is_unpacked.then(|| "its weight rests in 8 bits, by other scales".into())
            };
            let skipped = skipped(op, spec, is_head).or_else(plain);
            let skipped = skipped.or_else(rests_in_8_bits);
            let straddling = || straddling(spec, mesh);
            layers.push(Float8Layer {
                path: spec.path.clone(),
                gathered_before: skipped.is_none().then(straddling).flatten(),
                skipped,
            });
            layers.len() - 1
        });
        let layer = &layers[layer];
        let one_form =
            float8.gather && float8.scope == Scope::Global && float8.scaling != Scaling::Rowwise;
        Some(LayerProduct {
            product: product.filter(|_| layer.skipped.is_none())?,
            gathers: spec.at_rest && layer.gathered_before.is_none() && one_form,
            spec: spec.clone(),
        })
    };
    let products = window.ops.iter().map(of_op).collect();
    Layers { layers, products }
}

/// Returns which shards blocks of a weight straddle, if they do and the weight is to be quantised where it rests.
fn straddling(spec: &ParamSpec, mesh: &MeshShape) -> Option<String> {
    let float8 = spec.policy.float8.as_ref()?;
    let is_in_blocks = float8.scaling == Scaling::Blockwise128 && float8.scope == Scope::Global;
    if !is_in_blocks || !float8.gather {
        return None;
    }
    let home = spec.home(mesh);
    let cuts = home
        .dims
        .iter()
        .any(|dim| !dim.is_whole() && dim.in_blocks(BLOCK, mesh).is_none());
    let shards = home.display(mesh);
    cuts.then(|| format!("blocks of {BLOCK} straddle the shards of {shards}"))
}

/// Returns why a layer is left as it is, if it is.
fn skipped<O: Op>(op: &O, spec: &ParamSpec, is_head: impl Fn() -> bool) -> Option<String> {
    let float8 = spec.policy.float8.as_ref()?;
    let mut path: Vec<String> = spec.path.split('.').map(Into::into).collect();
    let names = |path: &[String]| {
        let mut patterns = float8.skip.iter();
        patterns
            .find(|text| Pattern::parse(text).is_ok_and(|pattern| pattern.matches(path)))
            .cloned()
    };
    let mut named = names(&path);
    while named.is_none() && path.pop().is_some() {
        named = names(&path);
    }
    if let Some(pattern) = named {
        return Some(format!("skip `{pattern}`"));
    }
    let sizes = spec.layout.shape();
    if sizes.len() != 2 || sizes.iter().any(|size| !size.is_multiple_of(MULTIPLE)) {
        return Some(format!("sizes {sizes:?} are not multiples of {MULTIPLE}"));
    }
    let is_flat = |input: crate::ir::Tensor<'_>| input.shape.len() < 2;
    if float8.scaling == Scaling::Blockwise128 && op.inputs().take(2).any(is_flat) {
        return Some("its input has one dim, and tiles need two".into());
    }
    let is_known = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if let Some(other) = op.inputs().find(|input| !is_known(input.dtype)) {
        return Some(format!("computes in {}", other.dtype.name()));
    }
    is_head().then(|| "output head".into())
}

/// Which layers are the last of a model: their results lead to no other product, their backward comes from none.
struct Heads {
    /// True if each value leads to a product in the forward.
    leads: Vec<bool>,
    /// True if each value comes from a product.
    comes: Vec<bool>,
    /// The weights of layers whose forward is in the window.
    forward: HashSet<String>,
}

/// Returns whether an operation is a product, of a linear layer or not: a head may be tied to an embedding.
fn is_product<O: Op>(op: &O) -> bool {
    op.traits().work != Work::Other || product(op).is_some()
}

impl Heads {
    fn new<O: Op>(window: &Window<O>, facts: &Facts) -> Self {
        let mut this = Self {
            leads: vec![false; window.dies.len()],
            comes: vec![false; window.dies.len()],
            forward: HashSet::new(),
        };
        for (op, phase) in window.ops.iter().zip(&facts.phases).rev() {
            if *phase != Phase::Forward {
                continue;
            }
            if product(op) == Some(Product::Forward)
                && let Some(spec) = facts.parameter(input(op, 1))
            {
                this.forward.insert(spec.path.clone());
            }
            if is_product(op) || op.outputs().any(|out| this.leads[out.id as usize]) {
                for input in op.inputs() {
                    this.leads[input.id as usize] = true;
                }
            }
        }
        for op in &window.ops {
            let comes = is_product(op) || op.inputs().any(|input| this.comes[input.id as usize]);
            for out in op.outputs().filter(|_| comes) {
                this.comes[out.id as usize] = true;
            }
        }
        this
    }

    fn is_head<O: Op>(&self, op: &O, product: Product, spec: &ParamSpec) -> bool {
        match product {
            Product::Forward => {
                let mut outputs = op.outputs();
                outputs.all(|out| !self.leads[out.id as usize])
            }
            // The forward was in a window before.
            Product::Input | Product::Weight => {
                !self.forward.contains(&spec.path) && !self.comes[input(op, 1) as usize]
            }
        }
    }
}
