use burn::backend::{Autodiff, Flex};
use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{
    Tensor, TensorData,
    activation::{silu, softmax},
};
use burn_dist::*;
use moe::model::*;
type B = Autodiff<Dist<Flex>>;

#[derive(Module, Debug, Parallelize)]
struct M<B: Backend> {
    inp: Linear<B>,
    #[parallel(replicate)]
    router: Linear<B>,
    #[parallel(experts)]
    gate: Param<Tensor<B, 3>>,
    #[parallel(experts)]
    up: Param<Tensor<B, 3>>,
    #[parallel(experts)]
    down: Param<Tensor<B, 3>>,
    out: Linear<B>,
    groups: usize,
}
impl<B: Backend> M<B> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let [b, s, d] = x.dims();
        let x = self.inp.forward(x);
        let g = b * self.groups;
        let t = s / self.groups;
        let xg = x.clone().reshape([g, t, d]);
        let p = softmax(self.router.forward(xg.clone()), 2);
        let ch = Choices::top_k(p, 2);
        let r = Routing::new(ch.expert, 8, t * 2 / 8 + 1);
        let e = r.dispatch(xg);
        let h = silu(e.clone().matmul(self.gate.val())) * e.matmul(self.up.val());
        let y = h.matmul(self.down.val());
        let y = r.combine(y, ch.gate, t).reshape([b, s, d]);
        self.out.forward(x + y)
    }
}
fn main() {
    let axes = std::env::args().nth(1).unwrap();
    let groups: usize = std::env::args().nth(2).map_or(1, |g| g.parse().unwrap());
    let over = std::env::args().nth(3);
    let mesh = DeviceMesh::builder()
        .axes(&axes.parse().unwrap())
        .build()
        .unwrap();
    let device = mesh.device();
    B::seed(&device, 1);
    let (d, f, e) = (64, std::env::var("F").map_or(96, |f| f.parse().unwrap()), 8);
    let s = std::env::var("S").map_or(32, |f| f.parse().unwrap());
    let init = Initializer::Normal {
        mean: 0.0,
        std: 0.1,
    };
    let model = M::<B> {
        inp: LinearConfig::new(d, d).init(&device),
        router: LinearConfig::new(d, e).with_bias(false).init(&device),
        gate: init.init([e, d, f], &device),
        up: init.init([e, d, f], &device),
        down: init.init([e, f, d], &device),
        out: LinearConfig::new(d, d).init(&device),
        groups,
    };
    let plan = match over {
        Some(o) => model
            .plan()
            .axis(&o)
            .experts("gate")
            .experts("up")
            .experts("down"),
        None => model.plan(),
    };
    let mut model = model.parallelize_with(&mesh, &plan).unwrap();
    let mut opt = AdamWConfig::new().init();
    for step in 0..3 {
        let mut run = || {
            let n = 8 * s * d;
            let v: Vec<f32> = (0..n)
                .map(|i| ((i * 7919 + step * 13) % 1009) as f32 / 504.5 - 1.0)
                .collect();
            let x = Tensor::<B, 3>::from_data(TensorData::new(v, [8, s, d]), &device);
            let y = model.forward(x.clone());
            let loss = (y - x).powi_scalar(2).mean();
            let g = GradientsParams::from_grads(loss.backward(), &model);
            model = opt.step(1e-2, model.clone(), g);
            loss.into_scalar()
        };
        if step == 2 {
            let (l, ex) = explain_after::<B, _>(&device, "propagate", run).unwrap();
            println!("{l}\n{ex}");
            if std::env::var("AFTER").is_ok() {
                println!("{}", ex.after.join("\n"));
            }
        } else {
            println!("{}", run());
        }
    }
}
