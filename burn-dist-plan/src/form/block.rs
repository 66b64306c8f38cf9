//! A block of a Llama as a window: RMSNorm, attention, SwiGLU, their backward and an update. Of scalar functions the
//! language has one, `exp`, which stands for all.

use std::sync::Arc;

use crate::ScheduleKind;
use crate::ir::{Mark, Pipeline, Stage, Style, TensorIndex};
use crate::layout::Layout;
use crate::toy::{Builder, Kind};

const BATCH: usize = 4;
const ROWS: usize = 4;
const WIDTH: usize = 4;
const HEADS: usize = 2;
const HIDDEN: usize = 8;

/// A parameter, and the terms of its gradient.
struct Param {
    value: TensorIndex,
    gradient: Option<TensorIndex>,
}

/// Writes a block.
struct Writer {
    b: Builder,
    params: Vec<Param>,
    schedule: Option<ScheduleKind>,
}

/// A norm, by what its backward needs.
struct Norm {
    weight: usize,
    wide: TensorIndex,
    slope: TensorIndex,
    normed: TensorIndex,
    y: TensorIndex,
}

impl Writer {
    /// A parameter of a unit, split along `dim` over tp; on a mesh with a pipeline axis, on a stage.
    fn param(
        &mut self,
        unit: &str,
        name: &str,
        shape: &[usize],
        style: Style,
        stage: u32,
    ) -> usize {
        let mut spec = Builder::spec(&format!("{unit}.{name}"), shape, Some(unit));
        spec.style = style;
        let split = match style {
            Style::Colwise => Some((shape.len() - 1, "tp")),
            Style::Rowwise => Some((0, "tp")),
            Style::Experts => Some((0, "ep")),
            _ => None,
        };
        if let Some((dim, axis)) = split
            && let Ok(axis) = self.b.mesh.axis(axis)
        {
            spec.layout.dims[dim].factors[0].axes = vec![axis];
        }
        spec.stage = self.b.mesh.pipeline_axis().map(|axis| Stage {
            index: stage,
            pipeline: Arc::new(Pipeline {
                axis,
                ranks: 2,
                stages: 2,
                schedule: self.schedule.unwrap_or_default().into(),
            }),
        });
        let value = self.b.param(spec);
        self.params.push(Param {
            value,
            gradient: None,
        });
        self.params.len() - 1
    }

    fn add(&mut self, param: usize, terms: TensorIndex) {
        self.params[param].gradient = Some(match self.params[param].gradient {
            Some(sum) => self.b.pair(Kind::Add, sum, terms),
            None => terms,
        });
    }

    fn linear(&mut self, x: TensorIndex, weight: usize) -> TensorIndex {
        self.b.linear(x, self.params[weight].value)
    }

    fn linear_backward(&mut self, x: TensorIndex, weight: usize, g: TensorIndex) -> TensorIndex {
        let value = self.params[weight].value;
        let (gx, gw) = self.b.linear_backward(x, value, g);
        self.add(weight, gw);
        gx
    }

    fn wide(&mut self, value: TensorIndex, like: TensorIndex) -> TensorIndex {
        let shape = self.b.shape(like);
        self.b.op(Kind::Expand, &[value], &shape)
    }

    fn norm(&mut self, x: TensorIndex, weight: usize) -> Norm {
        let squares = self.b.pair(Kind::Mul, x, x);
        let last = self.b.shape(x).len() - 1;
        let sum = self.b.sum_dim(squares, last);
        let scale = self.b.exp(sum);
        let slope = self.wide(scale, x);
        let normed = self.b.pair(Kind::Mul, x, slope);
        let wide = self.wide(self.params[weight].value, x);
        let y = self.b.pair(Kind::Mul, normed, wide);
        Norm {
            weight,
            wide,
            slope,
            normed,
            y,
        }
    }

    fn norm_backward(&mut self, norm: &Norm, g: TensorIndex) -> TensorIndex {
        let mut terms = self.b.pair(Kind::Mul, g, norm.normed);
        for dim in 0..self.b.shape(g).len() - 1 {
            terms = self.b.sum_dim(terms, dim);
        }
        self.add(norm.weight, terms);
        let g = self.b.pair(Kind::Mul, g, norm.wide);
        self.b.pair(Kind::Mul, g, norm.slope)
    }

    /// `[batch, rows, width]` as heads, `[batch, heads, width of a head, rows]`.
    fn heads(&mut self, x: TensorIndex) -> TensorIndex {
        let x = self.b.transpose(x);
        self.b.reshape(x, &[BATCH, HEADS, WIDTH / HEADS, ROWS])
    }

    fn together(&mut self, x: TensorIndex) -> TensorIndex {
        let x = self.b.reshape(x, &[BATCH, WIDTH, ROWS]);
        self.b.transpose(x)
    }

    fn update(mut self) -> Builder {
        for Param { value, gradient } in self.params {
            let gradient = gradient.expect("every parameter has one");
            let new = self.b.pair(Kind::Sub, value, gradient);
            self.b.survive(new);
        }
        self.b
    }
}

/// A block, with its microbatches; the feed-forward layer is the second stage, if there are stages.
pub(super) fn block(mesh: &str, microbatches: usize, schedule: Option<ScheduleKind>) -> Builder {
    let mut w = Writer {
        b: Builder::new(mesh),
        params: Vec::new(),
        schedule,
    };
    let (attention, mlp) = ("attention", "mlp");
    let norm1 = w.param(attention, "norm", &[1, 1, WIDTH], Style::Replicate, 0);
    let [wq, wk, wv] =
        ["wq", "wk", "wv"].map(|name| w.param(attention, name, &[WIDTH, WIDTH], Style::Colwise, 0));
    let wo = w.param(attention, "wo", &[WIDTH, WIDTH], Style::Rowwise, 0);
    let norm2 = w.param(mlp, "norm", &[1, 1, WIDTH], Style::Replicate, 1);
    let [gate, up] =
        ["gate", "up"].map(|name| w.param(mlp, name, &[WIDTH, HIDDEN], Style::Colwise, 1));
    let down = w.param(mlp, "down", &[HIDDEN, WIDTH], Style::Rowwise, 1);
    for _ in 0..microbatches {
        let x = w.b.data(&[BATCH, ROWS, WIDTH]);
        let first = w.norm(x, norm1);
        let [q, k, v] = [wq, wk, wv].map(|weight| w.linear(first.y, weight));
        let [q_t, k_t, v_t] = [q, k, v].map(|of| w.heads(of));
        let [q, v] = [q_t, v_t].map(|of| w.b.transpose(of));
        let scores = w.b.matmul(q, k_t);
        let e = w.b.exp(scores);
        let sum = w.b.sum_dim(e, 3);
        let wide = w.wide(sum, e);
        let p = w.b.pair(Kind::Mul, e, wide);
        let context = w.b.matmul(p, v);
        let context = w.b.transpose(context);
        let context = w.together(context);
        let o = w.linear(context, wo);
        let h = w.b.pair(Kind::Add, x, o);
        let second = w.norm(h, norm2);
        let gated = w.linear(second.y, gate);
        let a = w.b.exp(gated);
        let upped = w.linear(second.y, up);
        let product = w.b.pair(Kind::Mul, a, upped);
        let y = w.linear(product, down);
        let y = w.b.pair(Kind::Add, h, y);
        let squares = w.b.pair(Kind::Mul, y, y);
        let loss = w.b.sum(squares);
        let ones = w.b.ones_for(y);
        let g_y = w.b.pair(Kind::Mul, ones, y);
        let g = w.linear_backward(product, down, g_y);
        let g_up = w.b.pair(Kind::Mul, g, a);
        let g_a = w.b.pair(Kind::Mul, g, upped);
        let g_gate = w.b.pair(Kind::Mul, g_a, a);
        let of_up = w.linear_backward(second.y, up, g_up);
        let of_gate = w.linear_backward(second.y, gate, g_gate);
        let g = w.b.pair(Kind::Add, of_up, of_gate);
        let g = w.norm_backward(&second, g);
        let g_h = w.b.pair(Kind::Add, g, g_y);
        let g = w.linear_backward(context, wo, g_h);
        let g = w.heads(g);
        let g = w.b.transpose(g);
        let g_p = w.b.matmul(g, v_t);
        let p_t = w.b.transpose(p);
        let g_v = w.b.matmul(p_t, g);
        let g_scores = w.b.pair(Kind::Mul, g_p, p);
        let k = w.b.transpose(k_t);
        let g_q = w.b.matmul(g_scores, k);
        let g_k_t = w.b.matmul(q_t, g_scores);
        let [g_q_t, g_v_t] = [g_q, g_v].map(|of| w.b.transpose(of));
        let mut g = None;
        for (weight, of) in [(wq, g_q_t), (wk, g_k_t), (wv, g_v_t)] {
            let of = w.together(of);
            let of = w.linear_backward(first.y, weight, of);
            g = Some(match g {
                Some(sum) => w.b.pair(Kind::Add, sum, of),
                None => of,
            });
        }
        let g = g.expect("there are three");
        w.norm_backward(&first, g);
        w.b.read(loss);
    }
    w.update()
}

/// Attention whose keys go round the ranks of a context axis: each row meets every other one.
pub(super) fn ring(mesh: &str) -> Builder {
    let mut w = Writer {
        b: Builder::new(mesh),
        params: Vec::new(),
        schedule: None,
    };
    let [wq, wk] =
        ["wq", "wk"].map(|name| w.param("attention", name, &[WIDTH, WIDTH], Style::Replicate, 0));
    let shape = [BATCH * ROWS, WIDTH];
    let mut layout = Layout::replicated(&shape);
    layout.dims[0].factors[0].axes = w.b.mesh.axis_indices().collect();
    let x = w.b.placed(&shape, layout);
    let [q, k] = [wq, wk].map(|weight| w.linear(x, weight));
    let y = w.b.op(Kind::Meet, &[q, k], &shape);
    let squares = w.b.pair(Kind::Mul, y, y);
    let loss = w.b.sum(squares);
    let ones = w.b.ones_for(y);
    let g = w.b.pair(Kind::Mul, ones, y);
    let g_q = w.b.op(Kind::Meet, &[g, k], &shape);
    let g_k = w.b.op(Kind::MeetBack, &[g, k], &shape);
    w.linear_backward(x, wq, g_q);
    w.linear_backward(x, wk, g_k);
    w.b.read(loss);
    w.update()
}

/// A feed-forward layer of experts: tokens go to the ranks that have their experts, and back.
pub(super) fn experts(mesh: &str) -> Builder {
    let mut w = Writer {
        b: Builder::new(mesh),
        params: Vec::new(),
        schedule: None,
    };
    let up = w.param("experts", "up", &[2, WIDTH, HIDDEN], Style::Experts, 0);
    let down = w.param("experts", "down", &[2, HIDDEN, WIDTH], Style::Experts, 0);
    let split = |w: &Writer, dim: usize| {
        let mut layout = Layout::replicated(&[2, BATCH, WIDTH]);
        layout.dims[dim].factors[0].axes = vec![w.b.mesh.axis("ep").expect("an axis")];
        layout
    };
    let (by_token, by_expert) = (Arc::new(split(&w, 1)), Arc::new(split(&w, 0)));
    let goes =
        |w: &mut Writer, to: &Arc<Layout>, value| w.b.mark(Mark::Redistribute(to.clone()), value);
    let x = w.b.placed(&[2, BATCH, WIDTH], (*by_token).clone());
    let sent = goes(&mut w, &by_expert, x);
    let (up_w, down_w) = (w.params[up].value, w.params[down].value);
    let h = w.b.matmul(sent, up_w);
    let a = w.b.exp(h);
    let y = w.b.matmul(a, down_w);
    let back = goes(&mut w, &by_token, y);
    let squares = w.b.pair(Kind::Mul, back, back);
    let loss = w.b.sum(squares);
    let ones = w.b.ones_for(back);
    let g = w.b.pair(Kind::Mul, ones, back);
    let g = goes(&mut w, &by_expert, g);
    let a_t = w.b.transpose(a);
    let of_down = w.b.matmul(a_t, g);
    w.add(down, of_down);
    let down_t = w.b.transpose(down_w);
    let g = w.b.matmul(g, down_t);
    let g = w.b.pair(Kind::Mul, g, a);
    let sent_t = w.b.transpose(sent);
    let of_up = w.b.matmul(sent_t, g);
    w.add(up, of_up);
    w.b.read(loss);
    w.update()
}
