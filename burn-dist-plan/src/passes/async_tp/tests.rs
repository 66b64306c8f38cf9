use std::collections::BTreeSet;

use super::*;
use crate::clock::Hardware;
use crate::ir::{Mark, TensorIndex};
use crate::layout::Layout;
use crate::layout::Policy;
use crate::mesh::{Links, Nodes};
use crate::plan::Plan;
use crate::planner::Planner;
use crate::rule::{FactorRule, Held, OpRule};
use crate::toy::{Builder, Kind, Toy, options, planned, whole};
use crate::{PlanOptions, plan, text_after};

/// A feed-forward layer whose input and result are split over tp by sequence, its backward and an update. `flat`: with
/// batch and sequence as one dim between.
fn feed_forward(mesh: &str, [batch, rows]: [usize; 2], flat: bool, async_tp: AsyncTp) -> Builder {
    let mut b = Builder::new(mesh);
    let gate = b.split_weight("gate", [6, 8], 1);
    let up = b.split_weight("up", [6, 8], 1);
    let down = b.split_weight("down", [8, 6], 0);
    let data = b.data(&[batch, rows, 6]);
    let x = by_sequence(&mut b, data);
    let tokens = [batch * rows, 6];
    let flatten = |b: &mut Builder, value: TensorIndex| match flat {
        true => b.reshape(value, &tokens),
        false => value,
    };
    let split = |b: &mut Builder, value: TensorIndex| {
        let value = b.reshape(value, &[batch, rows, 6]);
        by_sequence(b, value)
    };
    let x = flatten(&mut b, x);
    let gated = b.linear(x, gate);
    let gated = b.exp(gated);
    let upped = b.linear(x, up);
    let h = b.pair(Kind::Mul, gated, upped);
    let y = b.linear(h, down);
    let y = split(&mut b, y);
    let loss = b.pair(Kind::Mul, y, y);
    let loss = b.sum_dim(loss, 0);
    let loss = b.sum_dim(loss, 1);
    let loss = b.sum_dim(loss, 2);
    let g = flatten(&mut b, y);
    let (g_h, g_down) = b.linear_backward(h, down, g);
    let g_upped = b.pair(Kind::Mul, g_h, gated);
    let g_gated = b.pair(Kind::Mul, g_h, upped);
    let (from_up, g_up) = b.linear_backward(x, up, g_upped);
    let (from_gate, g_gate) = b.linear_backward(x, gate, g_gated);
    let g_x = b.pair(Kind::Add, from_up, from_gate);
    let g_x = split(&mut b, g_x);
    for (weight, gradient) in [(up, g_up), (gate, g_gate), (down, g_down)] {
        let updated = b.pair(Kind::Sub, weight, gradient);
        b.survive(updated);
    }
    b.survive(g_x);
    b.read(loss);
    let policy = Policy {
        async_tp,
        ..Policy::default()
    };
    b.under(policy)
}

/// The value with dim 1 split over tp.
fn by_sequence(b: &mut Builder, value: TensorIndex) -> TensorIndex {
    let Ok(tp) = b.mesh.axis("tp") else {
        return value;
    };
    let mut layout = crate::layout::of_batch(&b.mesh, &b.shape(value));
    layout.dims[1].factors[0].axes = vec![tp];
    layout.normalize(&b.mesh);
    b.mark(Mark::Redistribute(Arc::new(layout)), value)
}

fn planned_for(b: &Builder, options: &PlanOptions, what: &str) -> Plan<Toy> {
    let plan = plan(&b.window, &b.mesh, options).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (expected, found) = (whole(&b.window), planned(&b.window, &plan, &b.mesh));
    for (value, expected) in expected {
        assert_eq!(found[&value], expected, "value {value}: {what}");
    }
    plan
}

/// Whatever the mesh and however uneven the parts: in chunks, the values are the same and as many bytes are received.
#[test]
fn chunks_change_no_value_and_no_byte() {
    let mut evenly = 0;
    for mesh in [
        "",
        "tp=1",
        "tp=2",
        "tp=3",
        "tp=4",
        "fsdp=2,tp=2",
        "dp=2,tp=3",
        "fsdp=2,cp=2,tp=2",
    ] {
        for sizes in [[1, 1], [1, 8], [2, 6], [3, 5], [4, 3], [2, 12]] {
            for flat in [false, true] {
                let what = format!("`{mesh}`, {sizes:?}, flat {flat}");
                let of = |async_tp| {
                    let b = feed_forward(mesh, sizes, flat, async_tp);
                    let plan = planned_for(&b, &options(&b.mesh), &what);
                    let bytes: u64 = plan.collectives.iter().map(|of| of.bytes).sum();
                    let shifts = plan
                        .collectives
                        .iter()
                        .filter(|of| of.kind.name() == "shift");
                    (bytes, shifts.count(), plan.overlaps)
                };
                let (on, off) = (of(AsyncTp::On), of(AsyncTp::Off));
                assert_eq!((off.1, off.2.len()), (0, 0), "{what}");
                let chunked =
                    on.2.iter()
                        .filter(|overlap| overlap.whole.is_none())
                        .count();
                if on.1 == 0 {
                    assert_eq!((on.0, chunked), (off.0, 0), "{what}");
                    continue;
                }
                // Records say what the rank with the most receives: with parts of equal sizes, that is what all do.
                // In chunks are x for gate and up, the gradient of the result, and both results.
                if sizes[1] == 12 {
                    assert_eq!((on.0, chunked), (off.0, 4), "{what}");
                    evenly += 1;
                }
            }
        }
    }
    assert_eq!(evenly, 12);
}

/// What is not cut into chunks says why.
#[test]
fn why_something_stays_whole_is_said() {
    let whys = |b: &Builder, options: &PlanOptions| -> BTreeSet<&'static str> {
        let plan = planned_for(b, options, "whys");
        plan.overlaps
            .iter()
            .filter_map(|overlap| overlap.whole)
            .collect()
    };
    let of = |async_tp| feed_forward("fsdp=2,tp=2", [2, 12], true, async_tp);
    let b = of(AsyncTp::On);
    assert_eq!(whys(&b, &options(&b.mesh)), BTreeSet::new());
    let nodes = Nodes::Each(1).topology(4, &[]).expect("nodes");
    let apart = PlanOptions {
        topology: nodes,
        ..options(&b.mesh)
    };
    assert_eq!(whys(&b, &apart), ["it goes over several nodes"].into());

    let b = of(AsyncTp::Auto);
    let unknown = ["nothing is known of its link"].into();
    assert_eq!(whys(&b, &options(&b.mesh)), unknown);
    let linked = |text: &str| PlanOptions {
        links: text.parse::<Links>().expect("links"),
        ..options(&b.mesh)
    };
    // Products of a few numbers are no work that a transfer could hide behind.
    let small = ["in chunks it would take longer"].into();
    assert_eq!(whys(&b, &linked("tp:latency_us=1,gbps=100")), small);

    // A weight's gradient sums over the dim that is gathered.
    let mut b = Builder::new("tp=2");
    let spec = Builder::spec("weight", &[4, 6], Some("layer"));
    let weight = b.param(spec);
    let rows = |b: &mut Builder, text: &str| {
        let layout = Layout::parse(text, &b.mesh, Some(&[8, 4])).expect("a layout");
        b.placed(&[8, 4], layout)
    };
    let (x, g) = (rows(&mut b, "[-, {tp}]"), rows(&mut b, "[{tp}, -]"));
    let y = b.linear(g, weight);
    let gradient = b.op(Kind::LinearW, &[x, g], &[4, 4]);
    b.survive(y);
    b.survive(gradient);
    let b = b.under(Policy {
        async_tp: AsyncTp::On,
        ..Policy::default()
    });
    let found = whys(&b, &options(&b.mesh));
    assert!(
        found.contains("the product that needs it sums over the dim that is gathered"),
        "{found:?}"
    );
}

/// A product of rows that are gathered over so many ranks, with so many terms.
fn gathered(parts: usize, terms: usize) -> Builder {
    let mut b = Builder::new(&format!("tp={parts}"));
    let tp = b.mesh.axis("tp").expect("an axis");
    let mut spec = Builder::spec("up", &[terms, 4096], Some("layer"));
    spec.layout.dims[1].factors[0].axes = vec![tp];
    let up = b.param(spec);
    let layout = Layout::parse("[{tp}, -]", &b.mesh, Some(&[4096, terms])).expect("a layout");
    let x = b.placed(&[4096, terms], layout);
    let y = b.linear(x, up);
    b.survive(y);
    b
}

/// Where a result of few terms is put together for longer than it is computed, no transfer is worth hiding.
#[test]
fn what_takes_more_time_in_chunks_stays_whole() {
    for links in ["tp:latency_us=1,gbps=3600", "tp:latency_us=1000,gbps=0.001"] {
        let b = gathered(2, 8);
        let options = PlanOptions {
            links: links.parse().expect("links"),
            ..options(&b.mesh)
        };
        let plan = plan(&b.window, &b.mesh, &options).expect("a plan");
        let whys: Vec<_> = plan.overlaps.iter().map(|overlap| overlap.whole).collect();
        assert_eq!(whys, [Some("in chunks it would take longer")], "{links}");
    }
}

/// A product that takes as long as it takes to start is there no sooner after the transfer if it is of one chunk alone.
#[test]
fn products_that_are_slow_to_start_stay_whole() {
    let of = |flops_besides: u64| {
        let b = gathered(2, 8);
        let options = PlanOptions {
            links: "tp:latency_us=1000,gbps=0.001".parse().expect("links"),
            device_costs: Some(DeviceCosts {
                per_node: 8,
                flops_besides,
                ..Hardware::preset("h100").expect("a preset").device_costs()
            }),
            ..options(&b.mesh)
        };
        let plan = plan(&b.window, &b.mesh, &options).expect("a plan");
        plan.overlaps[0].whole
    };
    assert_eq!(of(1 << 40), Some("in chunks it would take longer"));
}

/// Operations whose results depend on which rows they have are not cut.
#[test]
fn rows_that_are_held_together_are_not_cut() {
    type Edit = fn(&mut FactorRule);
    let cases: [(Edit, bool); 4] = [
        (|_| {}, true),
        (|rows| rows.block = 2, false),
        (|rows| rows.held = Held::Spaced, false),
        (|rows| rows.held = Held::Range, false),
    ];
    for (edit, is_cut) in cases {
        let b = gathered(2, 8).under(Policy {
            async_tp: AsyncTp::On,
            ..Policy::default()
        });
        let options = options(&b.mesh);
        let mut planner = Planner::new(&b.window, &b.mesh, &options);
        planner.run(Some("hierarchy")).expect("a pass");
        for step in &mut planner.state.programs[0].steps {
            if let ProgramStep::Local(step) = step
                && let OpRule::Factors(rule) = Arc::make_mut(&mut step.rule)
            {
                let rows = rule.inputs[0].dims[0].expect("rows have a factor");
                edit(&mut rule.factors[usize::from(rows)]);
            }
        }
        let report = pass(&mut planner.state, &planner.context).expect("a pass");
        let whole = report.overlaps[0].whole;
        let otherwise = "an operation in between does not work on a part of its rows";
        assert_eq!(whole, (!is_cut).then_some(otherwise));
    }
}

/// Where a product takes as long as the transfer, it is cut into chunks: on two ranks as on eight.
#[test]
fn what_takes_less_time_in_chunks_is_cut() {
    for parts in [2, 4, 8] {
        let b = gathered(parts, 4096);
        let fast = PlanOptions {
            links: "tp:latency_us=1,gbps=3600".parse().expect("links"),
            ..options(&b.mesh)
        };
        let slow = PlanOptions {
            links: "tp:latency_us=1000,gbps=0.001".parse().expect("links"),
            ..options(&b.mesh)
        };
        // What the devices say counts where no link is named.
        let of_devices = |per_node: usize, flops_besides: u64| PlanOptions {
            device_costs: Some(DeviceCosts {
                per_node,
                flops_besides,
                ..Hardware::preset("h100").expect("a preset").device_costs()
            }),
            ..options(&b.mesh)
        };
        let longer = Some("in chunks it would take longer");
        let apart = Some("it goes over several nodes");
        for (options, whole, what) in [
            (fast, None, "fast"),
            (slow, None, "slow"),
            (of_devices(8, 0), None, "an h100"),
            (
                of_devices(8, 1 << 40),
                longer,
                "products that are slow to start",
            ),
            (of_devices(parts - 1, 0), apart, "nodes of fewer"),
            (
                options(&b.mesh),
                Some("nothing is known of its link"),
                "unknown",
            ),
        ] {
            let plan = plan(&b.window, &b.mesh, &options).expect("a plan");
            let [overlap] = &plan.overlaps[..] else {
                panic!("{what}: {:?}", plan.overlaps)
            };
            assert_eq!(overlap.whole, whole, "{what}, {parts} ranks");
        }
    }
}

#[test]
fn a_program_in_chunks_as_text() {
    let b = feed_forward("fsdp=2,tp=2", [2, 12], true, AsyncTp::On);
    let text = text_after(&b.window, &b.mesh, &options(&b.mesh), "async_tp").expect("a pass");
    insta::assert_snapshot!(text);
}
