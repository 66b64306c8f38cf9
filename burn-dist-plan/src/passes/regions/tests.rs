//! Regions of the layers that models are made of, however they are spelled.

use proptest::prelude::*;

use super::look::refined;
use crate::account::account;
use crate::ir::region::{Binary, Instruction, Typed, Unary};
use crate::ir::{Role, Task, TensorIndex};
use crate::layout::Layout;
use crate::planner::Planner;
use crate::tests::{MESHES, check, random_program, three_layers};
use crate::toy::{Builder, Kind, Toy, options};
use crate::{Draws, PlanOptions, Policy, RegionKernels, Regions, plan, text_after};

const SHAPE: [usize; 2] = [6, 4];
const ROWS: [usize; 2] = [6, 1];

fn in_regions(b: &Builder) -> PlanOptions {
    PlanOptions {
        regions: Regions::On,
        ..options(&b.mesh)
    }
}

/// A program of products and one layer between them, which `write` writes: the results of these are kept.
fn layer(write: impl Fn(&mut Builder, [TensorIndex; 2]) -> Vec<TensorIndex>) -> Builder {
    let mut b = Builder::new("");
    let w = b.placed(&[4, 4], Layout::replicated(&[4, 4]));
    let x = b.data(&SHAPE);
    let made = [x, x].map(|of| b.linear(of, w));
    for made in write(&mut b, made) {
        let used = b.linear(made, w);
        b.survive(used);
    }
    b
}

/// Checks that every spelling gives what one device gives, and leaves so many regions and no elementwise operation.
/// Returns the text of the first.
fn check_spellings(name: &str, spellings: &[Builder], regions: usize) -> String {
    let texts = spellings.iter().enumerate().map(|(index, b)| {
        let what = format!("{name}, spelling {index}");
        check(b, &options(&b.mesh), &what);
        let text = text_after(&b.window, &b.mesh, &in_regions(b), "lifetimes").expect("a pass");
        assert_eq!(text.matches("= region(").count(), regions, "{what}: {text}");
        let plan = plan(&b.window, &b.mesh, &in_regions(b)).expect("a plan");
        for task in &plan.ranks[0].tasks {
            if let Task::Op(op, _) = task {
                assert_eq!(op.kind, Kind::Linear, "{what}: {text}");
            }
        }
        text
    });
    let texts: Vec<String> = texts.collect();
    texts.into_iter().next().expect("there are spellings")
}

fn one(b: &mut Builder, kind: Kind, of: &[TensorIndex]) -> TensorIndex {
    let shape = b.shape(of[0]);
    b.op(kind, of, &shape)
}

fn unary(b: &mut Builder, unary: Unary, of: TensorIndex) -> TensorIndex {
    one(b, Kind::Unary(unary), &[of])
}

fn wide(b: &mut Builder, of: TensorIndex) -> TensorIndex {
    b.op(Kind::Expand, &[of], &SHAPE)
}

fn div(b: &mut Builder, x: TensorIndex, y: TensorIndex) -> TensorIndex {
    one(b, Kind::Binary(Binary::Div), &[x, y])
}

fn mul(b: &mut Builder, x: TensorIndex, y: TensorIndex) -> TensorIndex {
    one(b, Kind::Mul, &[x, y])
}

fn weight(b: &mut Builder, shape: &[usize]) -> TensorIndex {
    b.placed(shape, Layout::replicated(shape))
}

/// Kernels without a function leave its operation where it stands, and compute the rest.
#[test]
fn what_kernels_do_not_compute_stays_an_operation() {
    let b = layer(|b, [x, y]| {
        let product = mul(b, x, y);
        let root = unary(b, Unary::Sqrt, product);
        let sum = b.pair(Kind::Add, root, x);
        vec![mul(b, sum, y)]
    });
    let is_root = |typed: &Typed| matches!(typed.instruction, Instruction::Unary(Unary::Sqrt, _));
    let without_roots = RegionKernels {
        name: "without roots",
        compute: Some(|formula| {
            let mut instructions = formula.instructions.iter();
            !instructions
                .any(|typed| matches!(typed.instruction, Instruction::Unary(Unary::Sqrt, _)))
        }),
        draws: Draws::All,
    };
    for (kernels, regions, roots) in [(RegionKernels::ALL, 1, 0), (without_roots, 2, 1)] {
        let options = PlanOptions {
            region_kernels: kernels,
            ..in_regions(&b)
        };
        check(&b, &options, kernels.name);
        let plan = plan(&b.window, &b.mesh, &options).expect("a plan");
        let mut found = (0, 0);
        for task in &plan.ranks[0].tasks {
            match task {
                Task::Region(task) => {
                    found.0 += 1;
                    let mut instructions = task.region.formula.instructions.iter();
                    assert!(kernels == RegionKernels::ALL || !instructions.any(is_root));
                }
                Task::Op(op, _) if op.kind == Kind::Unary(Unary::Sqrt) => found.1 += 1,
                _ => {}
            }
        }
        assert_eq!(found, (regions, roots), "{kernels:?}");
    }
}

#[test]
fn a_norm_is_one_region_however_it_is_spelled() {
    let stretched = layer(|b, [x, _]| {
        let w = weight(b, &[1, 4]);
        let squares = mul(b, x, x);
        let sum = b.sum_dim(squares, 1);
        let mean = one(b, Kind::Scale(1), &[sum]);
        let root = unary(b, Unary::Sqrt, mean);
        let root = wide(b, root);
        let normed = div(b, x, root);
        let w = wide(b, w);
        vec![mul(b, normed, w)]
    });
    let broadcast = layer(|b, [x, _]| {
        let w = weight(b, &[1, 4]);
        let squares = mul(b, x, x);
        let sum = b.sum_dim(squares, 1);
        let eps = b.op(Kind::Full(3), &[], &ROWS);
        let sum = b.pair(Kind::Add, sum, eps);
        let root = unary(b, Unary::Sqrt, sum);
        let slope = unary(b, Unary::Recip, root);
        let normed = mul(b, x, slope);
        vec![mul(b, normed, w)]
    });
    let squeezed = layer(|b, [x, _]| {
        let w = weight(b, &[4]);
        let x = one(b, Kind::Cast, &[x]);
        let squares = mul(b, x, x);
        let sum = b.sum_dim(squares, 1);
        let sum = b.reshape(sum, &[6]);
        let root = unary(b, Unary::Sqrt, sum);
        let root = b.reshape(root, &[6, 1]);
        let x = b.reshape(x, &[6, 1, 4]);
        let x = b.reshape(x, &SHAPE);
        let normed = div(b, x, root);
        let w = b.reshape(w, &[1, 4]);
        let w = wide(b, w);
        vec![mul(b, w, normed)]
    });
    let text = check_spellings("a norm", &[stretched, broadcast, squeezed], 1);
    insta::assert_snapshot!("norm", text);
}

#[test]
fn a_softmax_is_one_region_however_it_is_spelled() {
    let shifted = |b: &mut Builder, x| {
        let most = b.op(Kind::MaxDim(1), &[x], &ROWS);
        let most = wide(b, most);
        b.pair(Kind::Sub, x, most)
    };
    let stretched = layer(|b, [x, _]| {
        let x = shifted(b, x);
        let e = b.exp(x);
        let sum = b.sum_dim(e, 1);
        let sum = wide(b, sum);
        vec![div(b, e, sum)]
    });
    let by_slope = layer(|b, [x, _]| {
        let most = b.op(Kind::MaxDim(1), &[x], &ROWS);
        let x = one(b, Kind::Binary(Binary::Sub), &[x, most]);
        let e = b.exp(x);
        let sum = b.sum_dim(e, 1);
        let slope = unary(b, Unary::Recip, sum);
        vec![mul(b, e, slope)]
    });
    let by_log = layer(|b, [x, _]| {
        let x = shifted(b, x);
        let e = b.exp(x);
        let sum = b.sum_dim(e, 1);
        let log = unary(b, Unary::Log, sum);
        let log = wide(b, log);
        let x = b.pair(Kind::Sub, x, log);
        vec![b.exp(x)]
    });
    let text = check_spellings("a softmax", &[stretched, by_slope, by_log], 1);
    insta::assert_snapshot!("softmax", text);
}

#[test]
fn a_gate_is_one_region_however_it_is_spelled() {
    let by_sigmoid = layer(|b, [gate, up]| {
        let s = unary(b, Unary::Sigmoid, gate);
        let silu = mul(b, gate, s);
        vec![mul(b, silu, up)]
    });
    let by_exp = layer(|b, [gate, up]| {
        let less = unary(b, Unary::Neg, gate);
        let e = b.exp(less);
        let ones = b.ones_for(e);
        let e = b.pair(Kind::Add, e, ones);
        let silu = div(b, gate, e);
        vec![mul(b, up, silu)]
    });
    let by_cast = layer(|b, [gate, up]| {
        let gate = one(b, Kind::Cast, &[gate]);
        let up = one(b, Kind::Cast, &[up]);
        let gated = mul(b, gate, up);
        let s = unary(b, Unary::Sigmoid, gate);
        let y = mul(b, s, gated);
        vec![one(b, Kind::Cast, &[y])]
    });
    let text = check_spellings("a gate", &[by_sigmoid, by_exp, by_cast], 1);
    insta::assert_snapshot!("gate", text);
}

/// The gradient of a cross entropy: zeros with a number at the target of each row, and what a log-softmax makes of it.
#[test]
fn zeros_with_a_value_in_each_row_are_no_tensor() {
    let gradient = |to: fn(&mut Builder) -> TensorIndex| {
        layer(move |b, [x, y]| {
            let to = to(b);
            let (target, value) = (b.data(&ROWS), b.sum_dim(y, 1));
            let g = b.op(Kind::AddAt, &[to, target, value], &SHAPE);
            let e = b.exp(x);
            let sum = b.sum_dim(g, 1);
            let sum = wide(b, sum);
            let part = mul(b, e, sum);
            vec![b.pair(Kind::Sub, g, part)]
        })
    };
    let zeros = gradient(|b| b.op(Kind::Full(0), &[], &SHAPE));
    let stretched = gradient(|b| {
        let zero = b.op(Kind::Full(0), &[], &[1, 1]);
        wide(b, zero)
    });
    let made = gradient(|b| {
        let x = b.data(&SHAPE);
        b.exp(x)
    });
    let text = check_spellings("its gradient", &[zeros, stretched, made], 1);
    insta::assert_snapshot!("cross_entropy_backward", text);
}

/// The operation itself changes a few elements of a tensor in memory.
#[test]
fn a_value_in_each_row_of_a_tensor_is_added_by_an_operation() {
    let b = layer(|b, [x, y]| {
        let (target, value) = (b.data(&ROWS), b.sum_dim(y, 1));
        let changed = one(b, Kind::AddAt, &[x, target, value]);
        vec![b.exp(changed)]
    });
    check(&b, &in_regions(&b), "a tensor in memory");
    let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
    let is_add_at = |task: &Task<Toy>| matches!(task, Task::Op(op, _) if op.kind == Kind::AddAt);
    assert!(plan.ranks[0].tasks.iter().any(is_add_at));
}

/// Operations that know rows are not among the rows of a region, nor in one with rows of another length.
#[test]
fn an_index_is_one_of_a_row_of_its_own_operation() {
    let mut b = Builder::new("");
    let x = weight(&mut b, &[6, 4, 3]);
    let sum = b.sum_dim(x, 2);
    let sum = b.op(Kind::Reshape, &[sum], &SHAPE);
    let [target, value] = [(); 2].map(|()| b.data(&ROWS));
    let changed = one(&mut b, Kind::AddAt, &[sum, target, value]);
    let changed = b.op(Kind::Reshape, &[changed], &[6, 4, 1]);
    let of_rows = mul(&mut b, x, changed);
    // A backward that knows no rows makes nothing again that does.
    let w = weight(&mut b, &[4, 4]);
    let zeros = b.op(Kind::Full(0), &[], &SHAPE);
    let added = one(&mut b, Kind::AddAt, &[zeros, target, value]);
    let x = b.data(&SHAPE);
    let y = mul(&mut b, added, x);
    let g = b.linear(y, w);
    let g = mul(&mut b, g, added);
    let g = b.op(Kind::Reshape, &[g], &[12, 2]);
    let z = b.data(&[12, 2]);
    let of_no_rows = mul(&mut b, g, z);
    let later = mul(&mut b, target, value);
    for made in [of_rows, of_no_rows, later] {
        b.survive(made);
    }
    check(&b, &in_regions(&b), "indices of rows");
}

/// An update of a parameter with two moments, which `write` writes of parameter, gradient and moments.
fn update(write: impl Fn(&mut Builder, [TensorIndex; 4]) -> [TensorIndex; 3]) -> Builder {
    let mut b = Builder::new("");
    let of = [(); 4].map(|()| b.placed_as(&SHAPE, Layout::replicated(&SHAPE), Role::Unknown));
    for made in write(&mut b, of) {
        b.survive(made);
    }
    b
}

#[test]
fn an_update_is_one_region_however_it_is_spelled() {
    fn scaled(b: &mut Builder, slot: u64, x: TensorIndex) -> TensorIndex {
        one(b, Kind::Scale(slot), &[x])
    }
    /// `p - rate m / (sqrt(v) + eps)`.
    fn step(b: &mut Builder, p: TensorIndex, m: TensorIndex, v: TensorIndex) -> TensorIndex {
        let root = unary(b, Unary::Sqrt, v);
        let eps = b.op(Kind::Full(7), &[], &SHAPE);
        let root = b.pair(Kind::Add, root, eps);
        let step = div(b, m, root);
        let step = scaled(b, 5, step);
        b.pair(Kind::Sub, p, step)
    }
    let by_betas = update(|b, [p, g, m, v]| {
        let [kept, added] = [scaled(b, 0, m), scaled(b, 1, g)];
        let m = b.pair(Kind::Add, kept, added);
        let squares = mul(b, g, g);
        let [kept, added] = [scaled(b, 2, v), scaled(b, 3, squares)];
        let v = b.pair(Kind::Add, kept, added);
        let decayed = scaled(b, 4, p);
        [step(b, decayed, m, v), m, v]
    });
    let by_lerp = update(|b, [p, g, m, v]| {
        let way = b.pair(Kind::Sub, g, m);
        let way = scaled(b, 1, way);
        let m = b.pair(Kind::Add, m, way);
        let squares = mul(b, g, g);
        let way = b.pair(Kind::Sub, squares, v);
        let way = scaled(b, 3, way);
        let v = b.pair(Kind::Add, v, way);
        let decay = scaled(b, 4, p);
        let p = b.pair(Kind::Sub, p, decay);
        [step(b, p, m, v), m, v]
    });
    // The moments first, then their corrections as tensors of one element.
    let corrected = update(|b, [p, g, m, v]| {
        let squares = mul(b, g, g);
        let added = scaled(b, 3, squares);
        let kept = scaled(b, 2, v);
        let v = b.pair(Kind::Add, kept, added);
        let added = scaled(b, 1, g);
        let kept = scaled(b, 0, m);
        let m = b.pair(Kind::Add, kept, added);
        let one_less = b.op(Kind::Full(9), &[], &[1, 1]);
        let correction = wide(b, one_less);
        let [m_hat, v_hat] = [m, v].map(|of| div(b, of, correction));
        [step(b, p, m_hat, v_hat), m, v]
    });
    let text = check_spellings("an update", &[by_betas, by_lerp, corrected], 1);
    insta::assert_snapshot!("update", text);
}

/// The gradient of a norm's weight is one region with that of its input: sums along one dim after the other are one.
#[test]
fn sums_along_one_dim_after_the_other_are_one() {
    let shape = [2, 3, 4];
    let gradient = |dims: &[usize], is_read: bool| {
        let mut b = Builder::new("");
        let [g, x] = [(); 2].map(|()| weight(&mut b, &shape));
        let terms = mul(&mut b, g, x);
        let mut sum = terms;
        for (index, dim) in dims.iter().enumerate() {
            sum = b.sum_dim(sum, *dim);
            if is_read && index == 0 {
                b.survive(sum);
            }
        }
        b.survive(sum);
        check(&b, &options(&b.mesh), &format!("{dims:?}, {is_read}"));
        let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
        let tasks = plan.ranks[0].tasks.iter();
        let sums = tasks.filter(|task| matches!(task, Task::Op(..))).count();
        (plan.fused.expect("there are regions").operations, sums)
    };
    assert_eq!(gradient(&[0, 1], false), (3, 0));
    assert_eq!(gradient(&[1, 0], false), (3, 0));
    assert_eq!(gradient(&[1, 0, 2], false), (4, 0));
    assert_eq!(gradient(&[2, 1, 0], false), (4, 0));
    // Those along a dim alone are none of a region, and what else reads one is read.
    assert_eq!(gradient(&[0], false), (1, 1));
    assert_eq!(gradient(&[0, 1], true), (2, 1));
}

/// Instructions are in one region as long as it may have more, and so are tensors: one more begins the next.
#[test]
fn regions_have_an_end() {
    let regions = |kinds: &[Kind]| {
        let mut b = Builder::new("");
        let mut x = weight(&mut b, &SHAPE);
        for kind in kinds {
            x = one(&mut b, kind.clone(), &[x]);
        }
        b.survive(x);
        check(&b, &options(&b.mesh), "powers of powers");
        let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
        plan.fused.expect("there are regions").regions
    };
    let powers = |times: [u32; 3]| regions(&times.map(Kind::Power));
    assert_eq!(powers([100, 100, 56]), 1);
    assert_eq!(powers([100, 100, 57]), 2);
    // Each operation has a result, the first an operand that is there before, and the last might have one.
    assert_eq!(regions(&[const { Kind::Exp }; 30]), 1);
    assert_eq!(regions(&[const { Kind::Exp }; 31]), 2);
}

/// All results of an update take the place of what they are made of, or of the gradient: the rank holds no more than it
/// did before.
#[test]
fn an_update_overwrites_what_dies() {
    let b = update(|b, [p, g, m, v]| {
        let m = b.pair(Kind::Add, m, g);
        let v = b.pair(Kind::Add, v, g);
        let step = mul(b, m, v);
        [b.pair(Kind::Sub, p, step), m, v]
    });
    let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
    let fused = plan.fused.expect("there are regions");
    let tensor = (SHAPE.iter().product::<usize>() * 4) as u64;
    assert_eq!(fused.peak_bytes, 4 * tensor);
    assert_eq!(plan.memory[0].peak_bytes, 4 * tensor);
    assert_eq!(fused.peak_bytes_apart, 5 * tensor);
    // Twelve tensors, one by one, are four that are read and three that are written.
    assert_eq!(fused.bytes_saved, (12 - 7) * tensor);
}

/// Memory that is held, and freed memory that may be kept, are together never more than is held at the peak.
#[test]
fn as_much_may_be_kept_as_the_peak_leaves() {
    for mesh in MESHES {
        let b = three_layers(mesh, 6);
        let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
        for rank in &plan.ranks {
            let (memory, timeline) = account(rank);
            let (mut room, mut most) = (rank.room, 0);
            for (task, held) in rank.tasks.iter().zip(&timeline.tasks) {
                if let Task::Region(task) = task {
                    room = task.room;
                    most = most.max(room);
                }
                assert!(room + held.total() <= memory.peak_bytes, "{mesh}: {task:?}");
            }
            assert!(most > 0, "{mesh}: nothing is ever kept");
        }
    }
}

/// Nothing but elementwise operations and what they draw changes its place, whatever else there is, and what regions
/// make is read.
#[test]
fn everything_else_stays_where_it_was() {
    let mut seed = 7u32;
    let mut picks = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    for mesh in MESHES {
        let programs = (0..8).map(|_| {
            let picks: Vec<u8> = (0..120).map(|_| picks()).collect();
            random_program(mesh, &picks)
        });
        for b in programs.chain([three_layers(mesh, 6)]) {
            let tasks = |regions| {
                let options = PlanOptions {
                    regions,
                    ..options(&b.mesh)
                };
                let mut planner = Planner::new(&b.window, &b.mesh, &options);
                planner.run(Some("regions")).expect("a pass");
                let ranks = planner.state.ranks.iter();
                ranks
                    .map(|(_, rank)| rank.plan.tasks.clone())
                    .collect::<Vec<_>>()
            };
            for (with, without) in tasks(Regions::On).iter().zip(&tasks(Regions::Flex)) {
                let others = |tasks: &[Task<Toy>]| {
                    let is_other = |task: &&Task<Toy>| {
                        !matches!(task, Task::Op(..) | Task::Region(_) | Task::Random(_))
                    };
                    tasks.iter().filter(is_other).cloned().collect::<Vec<_>>()
                };
                assert_eq!(others(with), others(without), "`{mesh}`");
                assert!(with.len() <= without.len(), "`{mesh}`");
            }
        }
    }
}

/// Random numbers of a region are in memory only where something reads them that draws nothing; and those that something
/// else reads first, or that a region sees with other dims, are drawn before.
#[test]
fn regions_draw_random_numbers() {
    let drawn = |shape: &[usize], write: &dyn Fn(&mut Builder, [TensorIndex; 3]) -> TensorIndex| {
        let mut b = Builder::new("");
        let w = weight(&mut b, &[4, 4]);
        let x = b.data(&SHAPE);
        let x = b.linear(x, w);
        let random = b.op(Kind::Random, &[], shape);
        let made = write(&mut b, [x, random, w]);
        b.survive(made);
        let drawing = |name, draws| RegionKernels {
            name,
            draws,
            ..RegionKernels::ALL
        };
        let kernels = [
            RegionKernels::ALL,
            drawing("draws by number", Draws::Numbered),
            drawing("without draws", Draws::None),
        ];
        let plans = kernels.map(|region_kernels| {
            let options = PlanOptions {
                region_kernels,
                ..in_regions(&b)
            };
            check(&b, &options, region_kernels.name);
            plan(&b.window, &b.mesh, &options).expect("a plan")
        });
        let [all, numbered, without] = plans.map(|plan| {
            let tasks = plan.ranks[0].tasks.iter();
            let draws = tasks.filter(|task| matches!(task, Task::Random(_))).count();
            let regions = plan.ranks[0].tasks.iter().filter_map(|task| match task {
                Task::Region(task) => Some((task.draws.len(), task.outputs.len())),
                _ => None,
            });
            (draws, regions.collect::<Vec<_>>())
        });
        assert_eq!(numbered, all);
        assert_eq!(without.0, 1, "{without:?}");
        assert!(
            without.1.iter().all(|(draws, _)| *draws == 0),
            "{without:?}"
        );
        all
    };
    // Read by one region, which keeps nothing of it.
    let once = drawn(&SHAPE, &|b, [x, random, _]| {
        let kept = mul(b, x, random);
        one(b, Kind::Scale(1), &[kept])
    });
    assert_eq!(once, (0, vec![(1, 1)]));
    // Read by the backward too, which draws them again, once for two operations.
    let twice = drawn(&SHAPE, &|b, [x, random, w]| {
        let kept = mul(b, x, random);
        let y = b.linear(kept, w);
        let y = mul(b, y, random);
        mul(b, y, random)
    });
    assert_eq!(twice, (0, vec![(1, 1), (1, 1)]));
    // What is made of them in few instructions is made again, and kept if that takes more.
    for (count, outputs) in [(1, 1), (2, 2)] {
        let made = drawn(&SHAPE, &|b, [x, random, w]| {
            let scaled = (0..count).fold(random, |made, _| one(b, Kind::Scale(1), &[made]));
            let kept = mul(b, x, scaled);
            let y = b.linear(kept, w);
            mul(b, y, scaled)
        });
        let draws = usize::from(outputs == 1);
        assert_eq!(made, (0, vec![(1, outputs), (draws, 1)]), "{count}");
    }
    // Made of random numbers alone.
    let alone = drawn(&SHAPE, &|b, [_, random, _]| {
        one(b, Kind::Scale(1), &[random])
    });
    assert_eq!(alone, (0, vec![(1, 1)]));
    // Twice by one operation.
    let square = drawn(&SHAPE, &|b, [_, random, _]| mul(b, random, random));
    assert_eq!(square, (0, vec![(1, 1)]));
    // In a shape with other dims of size one.
    let seen = drawn(&[6, 1, 4], &|b, [x, random, _]| {
        let random = b.reshape(random, &SHAPE);
        mul(b, x, random)
    });
    assert_eq!(seen, (0, vec![(1, 1)]));
    // Read by a product first, in the region after it, or in another shape.
    let before = drawn(&SHAPE, &|b, [x, random, w]| {
        let y = b.linear(random, w);
        let kept = mul(b, x, random);
        mul(b, y, kept)
    });
    assert_eq!(before.0, 1, "{before:?}");
    let flat = drawn(&[24], &|b, [x, random, _]| {
        let random = b.reshape(random, &SHAPE);
        mul(b, x, random)
    });
    assert_eq!(flat, (1, vec![(0, 1)]));
    // One number for each row.
    let rows = drawn(&ROWS, &|b, [x, random, _]| {
        let random = wide(b, random);
        mul(b, x, random)
    });
    assert_eq!(rows, (1, vec![(0, 1)]));
    // The same, of a region that is of the rows at first.
    let scaled = drawn(&ROWS, &|b, [x, random, _]| {
        let random = one(b, Kind::Scale(1), &[random]);
        let random = wide(b, random);
        mul(b, x, random)
    });
    assert_eq!(scaled, (1, vec![(0, 1)]));
    // All rows of one number are added up.
    let sum = drawn(&ROWS, &|b, [_, random, _]| b.sum(random));
    assert_eq!(sum, (1, vec![(0, 1)]));
    // What shows it to others waits for the region.
    let shown = drawn(&[6, 1, 4], &|b, [x, random, w]| {
        let random = b.reshape(random, &SHAPE);
        let kept = mul(b, x, random);
        let y = b.linear(random, w);
        mul(b, y, kept)
    });
    assert_eq!(shown, (0, vec![(1, 2), (0, 1)]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Elementwise operations, sums, products and random numbers, of all elements, rows, columns or one, in any order.
    #[test]
    fn regions_compute_what_their_operations_do(
        mesh in proptest::sample::select(&["", "dp=2"][..]),
        picks in proptest::collection::vec(any::<u8>(), 8..120),
    ) {
        let mut b = Builder::new(mesh);
        let mut picks = picks.iter().map(|pick| usize::from(*pick));
        let w = weight(&mut b, &[4, 4]);
        let x = b.data(&SHAPE);
        let mut values = vec![b.linear(x, w)];
        while let Some(kind) = picks.next() {
            let mut pick = |bound: usize| picks.next().unwrap_or(0) % bound;
            let a = values[values.len() - 1 - pick(values.len().min(4))];
            let made = match kind % 9 {
                0 | 1 => b.op(Kind::Random, &[], &[SHAPE, ROWS, [1, 4], [1, 1]][pick(4)]),
                2 => one(&mut b, Kind::Scale(1), &[a]),
                3 => b.exp(a),
                4 => b.sum_dim(a, pick(2)),
                5 => b.sum(a),
                6 if b.shape(a) == SHAPE => b.linear(a, w),
                _ => {
                    let other = values[pick(values.len())];
                    let sizes = b.shape(a).into_iter().zip(b.shape(other));
                    let shape: Vec<usize> = sizes.map(|(one, other)| one.max(other)).collect();
                    let [a, other] = [a, other].map(|of| match b.shape(of) == shape {
                        true => of,
                        false => b.op(Kind::Expand, &[of], &shape),
                    });
                    mul(&mut b, a, other)
                }
            };
            if pick(5) == 0 {
                b.survive(made);
            }
            values.push(made);
        }
        b.survive(values[values.len() - 1]);
        check(&b, &in_regions(&b), mesh);
    }
}

/// Equal layers are equal regions.
#[test]
fn equal_layers_share_their_regions() {
    let fused = |layers: usize| {
        let mut b = Builder::new("");
        let w = weight(&mut b, &[4, 4]);
        let mut x = b.data(&SHAPE);
        for _ in 0..layers {
            let h = b.linear(x, w);
            let squares = mul(&mut b, h, h);
            let sum = b.sum_dim(squares, 1);
            let normed = div(&mut b, h, sum);
            x = b.pair(Kind::Add, x, normed);
        }
        b.survive(x);
        let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
        plan.fused.expect("there are regions")
    };
    let (few, many) = (fused(2), fused(9));
    assert_eq!((few.regions, many.regions), (2, 9));
    assert_eq!((few.different, many.different), (1, 1));
}

/// A backward makes again what takes little over what it reads anyway: of a gate the forward keeps its operands alone.
#[test]
fn a_backward_keeps_little_of_its_forward() {
    let gate = |is_used_besides: bool| {
        let mut b = Builder::new("");
        let w = weight(&mut b, &[4, 4]);
        let x = b.data(&SHAPE);
        let [gate, up] = [x, x].map(|of| b.linear(of, w));
        let sigmoid = unary(&mut b, Unary::Sigmoid, gate);
        let silu = mul(&mut b, gate, sigmoid);
        let y = mul(&mut b, silu, up);
        let g = b.linear(y, w);
        if is_used_besides {
            let used = b.linear(silu, w);
            b.survive(used);
        }
        let g_up = mul(&mut b, g, silu);
        let g_silu = mul(&mut b, g, up);
        let g_sigmoid = mul(&mut b, g_silu, gate);
        let slope = mul(&mut b, g_sigmoid, sigmoid);
        let g_gate = mul(&mut b, g_silu, sigmoid);
        let g_gate = b.pair(Kind::Add, g_gate, slope);
        for of in [g_up, g_gate] {
            let used = b.linear(of, w);
            b.survive(used);
        }
        check(&b, &options(&b.mesh), "a gate and its backward");
        let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
        let tasks = plan.ranks[0].tasks.iter();
        let regions = tasks.filter_map(|task| match task {
            Task::Region(task) => Some((task.inputs.len(), task.outputs.len())),
            _ => None,
        });
        regions.collect::<Vec<_>>()
    };
    assert_eq!(gate(false), [(2, 1), (3, 2)]);
    assert_eq!(gate(true), [(2, 2), (4, 2)]);
}

/// A backward makes values again of what is there: of one that is kept, whatever that is made of.
#[test]
fn what_is_kept_is_not_made_again() {
    let mut b = Builder::new("");
    let w = weight(&mut b, &[4, 4]);
    let x = b.data(&SHAPE);
    let gate = b.linear(x, w);
    let kept = unary(&mut b, Unary::Sigmoid, gate);
    let again = b.exp(kept);
    let y = b.pair(Kind::Add, kept, again);
    let g = b.linear(y, w);
    let first_use = b.linear(kept, w);
    let g_gate = mul(&mut b, g, again);
    for of in [g_gate, kept] {
        let used = b.linear(of, w);
        b.survive(used);
    }
    b.survive(first_use);
    check(&b, &options(&b.mesh), "a kept value");
    let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
    let tasks = plan.ranks[0].tasks.iter();
    let regions = tasks.filter_map(|task| match task {
        Task::Region(task) => {
            let instructions = task.region.formula.instructions.len();
            Some((task.inputs.len(), instructions, task.outputs.len()))
        }
        _ => None,
    });
    // The second one has no use for the gate.
    assert_eq!(regions.collect::<Vec<_>>(), [(1, 3, 2), (2, 2, 1)]);
}

/// A value that is reshaped between two operations is in one region with both, whatever becomes of its rows where these
/// are nothing to anyone.
#[test]
fn reshapes_of_values_are_looks() {
    let gradient = |to: &[usize], norm: bool| {
        let mut b = Builder::new("");
        let [x, y] = [(); 2].map(|()| weight(&mut b, &[6, 4]));
        let w = weight(&mut b, to);
        let sum = b.pair(Kind::Add, x, y);
        let seen = b.reshape(sum, to);
        let mut z = mul(&mut b, seen, w);
        if norm {
            let squares = mul(&mut b, z, z);
            let rows = b.sum_dim(squares, to.len() - 1);
            z = div(&mut b, z, rows);
        }
        b.survive(z);
        check(&b, &options(&b.mesh), &format!("{to:?}, {norm}"));
        let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
        let tasks = plan.ranks[0].tasks.iter();
        let spaces = tasks.filter_map(|task| match task {
            Task::Region(task) => Some(task.region.space.clone()),
            _ => None,
        });
        spaces.collect::<Vec<_>>()
    };
    assert_eq!(gradient(&[2, 3, 4], true), [[2, 3, 4]]);
    assert_eq!(gradient(&[24], false), [[6, 4]]);
    assert_eq!(gradient(&[2, 3, 2, 2], false), [[2, 3, 2, 2]]);
    // Rows of two and of four.
    assert_eq!(gradient(&[12, 2], true).len(), 1);
    // Of eight and of six, no dims are parts of both.
    assert_eq!(gradient(&[3, 8], false).len(), 1);
    assert_eq!(gradient(&[4, 6], false).len(), 2);
}

#[test]
fn spaces_are_refined_to_the_parts_of_both() {
    for (one, other, both) in [
        (&[6, 4][..], &[2, 12][..], Some(&[2, 3, 4][..])),
        (&[6, 4], &[6, 4], Some(&[6, 4])),
        (&[24], &[2, 3, 4], Some(&[2, 3, 4])),
        (&[6, 4], &[4, 6], None),
        (&[6], &[6, 1], Some(&[6, 1])),
        (&[6], &[5], None),
        (&[], &[], Some(&[])),
    ] {
        assert_eq!(refined(one, other).as_deref(), both, "{one:?}, {other:?}");
    }
}

/// An operand that lies otherwise than its region sees it.
#[test]
fn strides_are_those_of_parts_of_dims() {
    let mut b = Builder::new("");
    let [x, y] = [(); 2].map(|()| weight(&mut b, &[6, 4]));
    let w = weight(&mut b, &[3, 1]);
    let sum = b.pair(Kind::Add, x, y);
    let seen = b.reshape(sum, &[2, 3, 4]);
    let w = b.reshape(w, &[1, 3, 1]);
    let z = mul(&mut b, seen, w);
    b.survive(z);
    let plan = plan(&b.window, &b.mesh, &in_regions(&b)).expect("a plan");
    let tasks = plan.ranks[0].tasks.iter();
    let task = tasks.into_iter().find_map(|task| match task {
        Task::Region(task) => Some(task),
        _ => None,
    });
    let task = task.expect("one region");
    assert_eq!(task.region.space, [2, 3, 4]);
    // As it lies, transposed, and one number for each of three.
    assert_eq!(task.strides(0, &[4, 1]), [12, 4, 1]);
    assert_eq!(task.strides(1, &[1, 6]), [3, 1, 6]);
    assert_eq!(task.strides(2, &[5, 1]), [0, 5, 0]);
}

/// A policy that makes activations again changes which regions there are, and no value.
#[test]
fn what_is_made_again_is_in_regions_too() {
    for mesh in MESHES {
        for checkpoint in ["full", "selective"] {
            for offload in ["none", "params,optimizer,activations"] {
                let b = three_layers(mesh, 6).under(Policy {
                    checkpoint: checkpoint.parse().expect("a policy"),
                    offload: offload.parse().expect("a policy"),
                    ..Policy::default()
                });
                check(
                    &b,
                    &options(&b.mesh),
                    &format!("`{mesh}`, {checkpoint}, {offload}"),
                );
            }
        }
    }
}
