//! Writes windows.

use std::sync::Arc;

use super::{Kind, Toy, Value};
use crate::ir::window::Input;
use crate::ir::{
    Entry, Float8Store, InputState, Mark, Origin, ParamRole, ParamSpec, Role, Style, TensorIndex,
    Window,
};
use crate::layout::Layout;
use crate::mesh::{BoolStore, DType, MeshShape, Nodes, Topology};
use crate::{PlanOptions, Policy, RegionKernels, Regions};

/// Returns the topology with so many ranks on each node; one node if they do not divide the ranks.
pub(crate) fn nodes_of(mesh: &MeshShape, per_node: usize) -> Topology {
    let ranks = mesh.num_ranks();
    let nodes = Nodes::Each(per_node).topology(ranks, &[]);
    nodes.unwrap_or_else(|_| Topology::single(ranks))
}

/// Returns options that ask for nothing, for all ranks of `mesh`.
pub(crate) fn options(mesh: &MeshShape) -> PlanOptions {
    PlanOptions {
        defer: true,
        split_batches: true,
        fuzz: None,
        scatter_bytes_min: 0,
        floats_missing: Vec::new(),
        float8_store: Float8Store {
            dtype: DType::U8,
            turns: false,
        },
        everyone_reads: false,
        topology: Topology::single(mesh.num_ranks()),
        links: Default::default(),
        device_costs: None,
        hierarchy_bytes_min: None,
        microbatches: None,
        ranks: mesh.ranks().collect(),
        bool_store: BoolStore::Native,
        storage: Default::default(),
        // Tests of other passes read operations.
        regions: Regions::Flex,
        region_kernels: RegionKernels::ALL,
        is_explained: true,
    }
}

/// Writes a window, operation by operation.
pub(crate) struct Builder {
    pub mesh: MeshShape,
    pub window: Window<Toy>,
    shapes: Vec<Vec<usize>>,
}

impl Builder {
    pub(crate) fn new(mesh: &str) -> Self {
        Self {
            mesh: mesh.parse().expect("a mesh"),
            window: Window::default(),
            shapes: Vec::new(),
        }
    }

    fn value(&mut self, shape: &[usize]) -> TensorIndex {
        self.window.dies.push(true);
        self.shapes.push(shape.to_vec());
        self.shapes.len() as TensorIndex - 1
    }

    fn tensor(&self, id: TensorIndex) -> Value {
        Value {
            id,
            shape: self.shapes[id as usize].clone(),
            dtype: DType::F32,
            last_use: false,
        }
    }

    fn input(&mut self, shape: &[usize], state: InputState) -> TensorIndex {
        let value = self.value(shape);
        self.window.inputs.push(Input {
            value,
            shape: shape.to_vec(),
            dtype: DType::F32,
            state,
        });
        value
    }

    /// A value that lives on the ranks.
    pub(crate) fn placed(&mut self, shape: &[usize], layout: Layout) -> TensorIndex {
        self.placed_as(shape, layout, Role::Unknown)
    }

    /// A value that lives on the ranks, of which is known what it is.
    pub(crate) fn placed_as(&mut self, shape: &[usize], layout: Layout, role: Role) -> TensorIndex {
        let state = InputState::Placed {
            layout: Arc::new(layout),
            role,
            origin: None,
            stage: None,
        };
        self.input(shape, state)
    }

    pub(crate) fn shape(&self, value: TensorIndex) -> Vec<usize> {
        self.shapes[value as usize].clone()
    }

    /// A batch of the host.
    pub(crate) fn data(&mut self, shape: &[usize]) -> TensorIndex {
        let preferred = Arc::new(crate::layout::of_batch(&self.mesh, shape));
        let state = InputState::Host {
            preferred,
            entry: Entry::Free(Origin::Data),
        };
        self.input(shape, state)
    }

    /// A parameter, where it rests.
    pub(crate) fn param(&mut self, spec: ParamSpec) -> TensorIndex {
        let shape = spec.layout.shape();
        let layout = match spec.at_rest {
            true => spec.layout.at_rest(&self.mesh),
            false => spec.layout.clone(),
        };
        let state = InputState::Placed {
            layout: Arc::new(layout),
            stage: spec.stage.clone(),
            role: Role::Parameter(Arc::new(spec)),
            origin: None,
        };
        self.input(&shape, state)
    }

    /// What an optimizer keeps for a parameter, where that rests.
    pub(crate) fn state(&mut self, spec: ParamSpec) -> TensorIndex {
        let shape = spec.layout.shape();
        let state = InputState::Placed {
            layout: Arc::new(spec.layout.at_rest(&self.mesh)),
            stage: spec.stage.clone(),
            role: Role::State(Arc::new(spec)),
            origin: None,
        };
        self.input(&shape, state)
    }

    /// Gives all parameters so far one policy.
    pub(crate) fn under(mut self, policy: Policy) -> Self {
        let policy = Arc::new(policy);
        for input in &mut self.window.inputs {
            if let InputState::Placed {
                role: Role::Parameter(spec),
                ..
            } = &mut input.state
            {
                Arc::make_mut(spec).policy = policy.clone();
            }
        }
        self
    }

    /// What is known of a parameter of no style.
    pub(crate) fn spec(path: &str, shape: &[usize], unit: Option<&str>) -> ParamSpec {
        ParamSpec {
            path: path.into(),
            style: Style::Replicate,
            role: ParamRole::Weight,
            layout: Layout::replicated(shape),
            input: None,
            output: None,
            unit: unit.map(Into::into),
            policy: Arc::default(),
            at_rest: true,
            stage: None,
        }
    }

    /// Adds a weight of the unit `mlp` with a dim that is split over tp, if the mesh has that axis.
    pub(crate) fn split_weight(
        &mut self,
        path: &str,
        shape: [usize; 2],
        dim: usize,
    ) -> TensorIndex {
        let mut spec = Self::spec(path, &shape, Some("mlp"));
        if let Ok(tp) = self.mesh.axis("tp") {
            spec.layout.dims[dim].factors[0].axes = vec![tp];
        }
        self.param(spec)
    }

    /// Adds an operation whose result has the shape `shape`.
    pub(crate) fn op(
        &mut self,
        kind: Kind,
        inputs: &[TensorIndex],
        shape: &[usize],
    ) -> TensorIndex {
        let out = self.value(shape);
        let op = Toy {
            kind,
            inputs: inputs.iter().map(|input| self.tensor(*input)).collect(),
            out: self.tensor(out),
            also: None,
        };
        self.window.ops.push(op);
        out
    }

    /// An elementwise function of two tensors of one shape.
    pub(crate) fn pair(&mut self, kind: Kind, a: TensorIndex, b: TensorIndex) -> TensorIndex {
        let shape = self.shapes[a as usize].clone();
        self.op(kind, &[a, b], &shape)
    }

    pub(crate) fn exp(&mut self, a: TensorIndex) -> TensorIndex {
        let shape = self.shapes[a as usize].clone();
        self.op(Kind::Exp, &[a], &shape)
    }

    pub(crate) fn matmul(&mut self, a: TensorIndex, b: TensorIndex) -> TensorIndex {
        let mut shape = self.shapes[a as usize].clone();
        let last = self.shapes[b as usize].last().expect("a matrix");
        *shape.last_mut().expect("a matrix") = *last;
        self.op(Kind::Matmul, &[a, b], &shape)
    }

    pub(crate) fn transpose(&mut self, a: TensorIndex) -> TensorIndex {
        let mut shape = self.shapes[a as usize].clone();
        let ndim = shape.len();
        shape.swap(ndim - 2, ndim - 1);
        self.op(Kind::Transpose, &[a], &shape)
    }

    pub(crate) fn sum_dim(&mut self, a: TensorIndex, dim: usize) -> TensorIndex {
        let mut shape = self.shapes[a as usize].clone();
        shape[dim] = 1;
        self.op(Kind::SumDim(dim), &[a], &shape)
    }

    pub(crate) fn sum(&mut self, a: TensorIndex) -> TensorIndex {
        let shape = vec![1; self.shapes[a as usize].len()];
        self.op(Kind::Sum, &[a], &shape)
    }

    pub(crate) fn reshape(&mut self, a: TensorIndex, shape: &[usize]) -> TensorIndex {
        self.op(Kind::Reshape, &[a], shape)
    }

    /// `x w`, with `w` of shape `[i, o]`.
    pub(crate) fn linear(&mut self, x: TensorIndex, w: TensorIndex) -> TensorIndex {
        let mut shape = self.shapes[x as usize].clone();
        *shape.last_mut().expect("rows") = self.shapes[w as usize][1];
        self.op(Kind::Linear, &[x, w], &shape)
    }

    /// The gradients of the input and the weight of a linear layer, of that of its result.
    pub(crate) fn linear_backward(
        &mut self,
        x: TensorIndex,
        w: TensorIndex,
        g: TensorIndex,
    ) -> (TensorIndex, TensorIndex) {
        let shape = |value: TensorIndex| self.shapes[value as usize].clone();
        let (of_x, of_w) = (shape(x), shape(w));
        let gx = self.op(Kind::LinearX, &[w, g], &of_x);
        let gw = self.op(Kind::LinearW, &[x, g], &of_w);
        (gx, gw)
    }

    /// The rows of a table at indices.
    pub(crate) fn lookup(&mut self, table: TensorIndex, indices: TensorIndex) -> TensorIndex {
        let (size, width) = (self.shape(table)[0], self.shape(table)[1]);
        let shape = [self.shape(indices)[0], width];
        let rows = 0..size;
        self.op(Kind::Lookup { size, rows }, &[table, indices], &shape)
    }

    /// A table with rows added to it at indices.
    pub(crate) fn sum_at(
        &mut self,
        table: TensorIndex,
        indices: TensorIndex,
        terms: TensorIndex,
    ) -> TensorIndex {
        let shape = self.shape(table);
        let kind = Kind::SumAt {
            size: shape[0],
            rows: 0..shape[0],
            base: true,
        };
        self.op(kind, &[table, indices, terms], &shape)
    }

    /// The one that is made for a loss, as wide as `like`.
    pub(crate) fn ones_for(&mut self, like: TensorIndex) -> TensorIndex {
        let shape = self.shapes[like as usize].clone();
        let one = self.op(Kind::Full(1), &[], &vec![1; shape.len()]);
        self.op(Kind::Expand, &[one], &shape)
    }

    /// Says something of a value.
    pub(crate) fn mark(&mut self, mark: Mark, value: TensorIndex) -> TensorIndex {
        let shape = self.shapes[value as usize].clone();
        self.op(Kind::Mark(mark), &[value], &shape)
    }

    /// Lets a value live on after the window.
    pub(crate) fn survive(&mut self, value: TensorIndex) {
        self.window.dies[value as usize] = false;
    }

    /// Lets the host read a value.
    pub(crate) fn read(&mut self, value: TensorIndex) {
        self.window.reads.push(value);
    }
}
