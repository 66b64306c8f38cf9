//! Where time goes: modelled links, the times of ranks, and the trace.

use std::collections::BTreeMap;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Tensor, TensorData};
use burn_dist::explanation::Explanation;
use burn_dist::mesh::{Link, Links};
use burn_dist::report::RankTimes;
use burn_dist::{DeviceMesh, DeviceMeshBuilder, OnMesh, Parallelize, ParallelizeWith, explain};
use serde_json::Value;

#[derive(Module, Debug, Parallelize)]
struct Block {
    #[parallel(colwise)]
    up: Linear,
    #[parallel(rowwise)]
    down: Linear,
}

#[derive(Module, Debug, Parallelize)]
struct Net {
    blocks: Vec<Block>,
}

/// What a training run leaves behind.
struct Ran {
    losses: Vec<u32>,
    /// Of the last step.
    explanation: Explanation,
    times: Vec<RankTimes>,
    trace: Option<Value>,
}

/// Trains for three steps; explains and times the last.
fn train(builder: DeviceMeshBuilder, text: &str) -> Ran {
    train_with(builder, text, 1)
}

fn train_with(builder: DeviceMeshBuilder, text: &str, prefetch: u32) -> Ran {
    let mesh = builder
        .axes(&text.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .build()
        .expect("a mesh");
    let device = mesh.device().autodiff();
    device.seed(3);
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let mut net = Net {
        blocks: (0..2)
            .map(|_| Block {
                up: linear(8, 16),
                down: linear(16, 8),
            })
            .collect(),
    };
    let plan = net.plan().prefetch(prefetch);
    net = net
        .parallelize_with(&mesh, &plan)
        .expect("the model fits the mesh");
    let mut optim = AdamConfig::new().init();
    let values: Vec<f32> = (0..64).map(|i| (i * 37 % 23) as f32 / 23.0).collect();
    let mut losses = Vec::new();
    let mut last = (Explanation::default(), Vec::new());
    for _ in 0..3 {
        let before = device.report();
        let ((), explanation) = explain(&device, || {
            let data = TensorData::new(values.clone(), [8, 8]);
            let x = Tensor::<2>::from_data(data, &device);
            let y = net.blocks.iter().fold(x.clone(), |x, block| {
                block.down.forward(block.up.forward(x).tanh())
            });
            let loss = (y - x).powi_scalar(2).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = optim.step(1e-2, net.clone(), gradients);
            losses.push(loss.into_scalar::<f32>().to_bits());
        });
        let after = device.report();
        let ranks = after.ranks.iter().zip(&before.ranks);
        let times = ranks.map(|(after, before)| after.times.since(&before.times));
        last = (explanation, times.collect());
    }
    let trace = device.trace().map(|trace| {
        let mut text = Vec::new();
        trace.write(&mut text).expect("memory takes it");
        assert_eq!(trace.left_out(), 0);
        serde_json::from_slice(&text).expect("it is JSON")
    });
    Ran {
        losses,
        explanation: last.0,
        times: last.1,
        trace,
    }
}

/// Modelled time of a step on links, per axes, from the plan: the sum of the formula over its collectives.
fn modelled(
    explanation: &Explanation,
    links: &Links,
    sizes: &[(&str, u64)],
) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for collective in &explanation.collectives {
        let names = || collective.axes.split(',');
        let Some(link) = links.over(names()) else {
            continue;
        };
        let size = |name: &str| sizes.iter().find(|(n, _)| *n == name).expect("an axis").1;
        let members: u64 = names().map(size).product();
        let rounds = match collective.kind {
            "all_reduce" => 2 * (members - 1),
            _ => members - 1,
        };
        let each = link.transfer_ns(rounds, collective.bytes / collective.count);
        *sum.entry(collective.axes.clone()).or_default() += each * collective.count;
    }
    sum
}

#[test]
fn links_change_no_value_and_take_the_time_of_the_formula() {
    let links: Links = "fsdp:latency_us=3,gbps=4;tp:latency_us=1.5,gbps=2"
        .parse()
        .expect("links");
    for (text, sizes) in [
        ("fsdp=4", &[("fsdp", 4)][..]),
        ("fsdp=2,tp=2", &[("fsdp", 2), ("tp", 2)]),
    ] {
        let plain = train(DeviceMesh::builder(), text);
        let only_there = links.to_string();
        let parts = only_there.split(';');
        let own = parts.filter(|part| sizes.iter().any(|(name, _)| part.starts_with(name)));
        let own: Links = own.collect::<Vec<_>>().join(";").parse().expect("links");
        let slow = train(DeviceMesh::builder().links(own.clone()), text);
        assert_eq!(plain.losses, slow.losses, "{text}");
        let expected = modelled(&slow.explanation, &own, sizes);
        assert_eq!(expected.len(), sizes.len());
        assert_eq!(slow.explanation.communication_ns, expected, "{text}");
        for times in &slow.times {
            let comm = times
                .by_axes
                .iter()
                .map(|axes| (axes.axes.clone(), axes.comm.as_nanos() as u64));
            assert_eq!(comm.collect::<BTreeMap<_, _>>(), expected, "{text}");
            assert_eq!(times.comm.as_nanos() as u64, expected.values().sum::<u64>());
            let calls: u64 = times.by_axes.iter().map(|axes| axes.calls).sum();
            let planned: u64 = slow
                .explanation
                .totals
                .values()
                .map(|total| total.count)
                .sum();
            assert_eq!(calls, planned);
            assert!(times.exposed > Duration::ZERO && times.compute > Duration::ZERO);
            assert!(times.late + times.on_wire <= times.exposed);
        }
    }
}

#[test]
fn a_link_is_for_an_axis_that_exists() {
    let link = Link::new(1.0, 1.0).expect("a link");
    let error = DeviceMesh::builder()
        .axis("tp", 2)
        .link("fsdp", link)
        .build()
        .unwrap_err();
    assert!(
        error.to_string().contains("no axis `fsdp`: it has tp"),
        "{error}"
    );
}

/// A slice of the trace, in nanoseconds.
#[derive(Debug)]
struct Slice {
    name: String,
    category: String,
    start: i64,
    end: i64,
    args: Value,
}

/// Slices by rank and lane, in order, and the names of lanes.
#[expect(clippy::type_complexity, reason = "used once")]
fn lanes(
    trace: &Value,
) -> (
    BTreeMap<(u64, u64), Vec<Slice>>,
    BTreeMap<(u64, u64), String>,
) {
    let (mut slices, mut names): (BTreeMap<_, Vec<Slice>>, _) = (BTreeMap::new(), BTreeMap::new());
    for event in trace["traceEvents"].as_array().expect("a list") {
        let number = |key: &str| {
            event[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key} of {event}"))
        };
        let lane = (number("pid"), number("tid"));
        let text = |value: &Value| value.as_str().expect("a text").to_string();
        let ns = |key: &str| (event[key].as_f64().expect("a number") * 1e3).round() as i64;
        match event["ph"].as_str() {
            Some("M") if event["name"] == "thread_name" => {
                names.insert(lane, text(&event["args"]["name"]));
            }
            Some("M") => {}
            Some("X") => slices.entry(lane).or_default().push(Slice {
                name: text(&event["name"]),
                category: text(&event["cat"]),
                start: ns("ts"),
                end: ns("ts") + ns("dur"),
                args: event["args"].clone(),
            }),
            other => panic!("{other:?} is no phase of this trace"),
        }
    }
    (slices, names)
}

#[test]
fn a_trace_shows_what_ran() {
    for (text, links, axes) in [
        ("fsdp=4", "latency_us=1,gbps=8", &["fsdp"][..]),
        ("fsdp=2,tp=2", "latency_us=1,gbps=8", &["fsdp", "tp"]),
        ("fsdp=2", "", &["fsdp"]),
        ("1", "", &[]),
    ] {
        let builder = DeviceMesh::builder().trace();
        let ran = train(
            match links {
                "" => builder,
                links => builder.links(links.parse().expect("links")),
            },
            text,
        );
        let trace = ran.trace.expect("it was turned on");
        assert_eq!(trace["otherData"]["mesh"], text);
        let (slices, names) = lanes(&trace);
        let ranks = ran.times.len() as u64;
        assert_eq!(
            names.len() as u64,
            ranks * (1 + axes.len() as u64),
            "{names:?}"
        );
        assert!(slices.keys().all(|lane| names.contains_key(lane)));
        for rank in 0..ranks {
            assert_eq!(names[&(rank, 0)], "compute");
            let mut found: Vec<&str> = names
                .range((rank, 1)..(rank + 1, 0))
                .map(|(_, name)| name.strip_prefix("communication ").expect("its name"))
                .collect();
            found.sort_unstable();
            assert_eq!(found, axes);

            // On a lane, slices are in order, and follow or contain each other.
            for (_, lane) in slices.range((rank, 0)..(rank + 1, 0)) {
                let mut open: Vec<&Slice> = Vec::new();
                let mut before = i64::MIN;
                for slice in lane {
                    assert!(
                        slice.start >= before && slice.end >= slice.start,
                        "{slice:?}"
                    );
                    before = slice.start;
                    while open.last().is_some_and(|outer| outer.end <= slice.start) {
                        open.pop();
                    }
                    if let Some(outer) = open.last() {
                        assert!(slice.end <= outer.end, "{slice:?} in {outer:?}");
                    }
                    open.push(slice);
                }
            }

            // The last window of many tasks is the step that was explained.
            let compute = &slices[&(rank, 0)];
            let windows: Vec<&Slice> = compute.iter().filter(|s| s.category == "window").collect();
            let planned: u64 = ran
                .explanation
                .totals
                .values()
                .map(|total| total.count)
                .sum();
            let step = windows
                .iter()
                .rev()
                .find(|window| {
                    let inside = |s: &&Slice| s.start >= window.start && s.end <= window.end;
                    compute.iter().filter(inside).count() > 20
                })
                .expect("a step");
            let inside = |s: &&Slice| s.start >= step.start && s.end <= step.end;
            let moved: Vec<&Slice> = (1..=axes.len() as u64)
                .flat_map(|lane| &slices[&(rank, lane)])
                .filter(inside)
                .collect();
            assert_eq!(moved.len() as u64, planned, "{text}");
            let kinds =
                |kind: &str| moved.iter().filter(|s| s.name.starts_with(kind)).count() as u64;
            for (kind, total) in &ran.explanation.totals {
                assert_eq!(kinds(kind), total.count);
            }
            for verb in ["launch ", "wait "] {
                let own = compute
                    .iter()
                    .filter(inside)
                    .filter(|s| s.name.starts_with(verb));
                assert_eq!(own.count() as u64, planned);
            }
            assert!(moved.iter().all(|s| s.args["bytes"].is_u64()));
            assert!(
                moved
                    .iter()
                    .all(|s| axes.contains(&s.args["axes"].as_str().expect("axes")))
            );
            let named = |path: &str| {
                compute
                    .iter()
                    .any(|s| s.category == "compute" && s.args["path"] == path)
            };
            for path in ["blocks.0.up", "blocks.1.down"] {
                assert!(named(path), "no operation of {path}");
            }
        }
    }
}

#[test]
fn without_a_trace_there_is_none() {
    assert!(train(DeviceMesh::builder(), "fsdp=2").trace.is_none());
}

/// What the thread of rank 0 does in the explained step, in order: `launch`, `wait` or `compute`, and the kind and
/// module.
fn order(prefetch: u32) -> Vec<(String, String)> {
    let ran = train_with(DeviceMesh::builder().trace(), "fsdp=2", prefetch);
    let (slices, _) = lanes(&ran.trace.expect("it was turned on"));
    let compute = &slices[&(0, 0)];
    let first = |lane: &[Slice]| {
        let is_step = |window: &&Slice| {
            let inside = |s: &&Slice| s.start >= window.start && s.end <= window.end;
            window.category == "window" && lane.iter().filter(inside).count() > 20
        };
        let step = lane.iter().rev().find(is_step).expect("a step");
        (step.start, step.end)
    };
    let (start, end) = first(compute);
    let inside = compute
        .iter()
        .filter(|s| s.start >= start && s.end <= end && s.category != "window");
    inside
        .map(|slice| match slice.name.split_once(' ') {
            Some((verb @ ("launch" | "wait"), what)) => (verb.into(), what.into()),
            _ => ("compute".into(), slice.name.clone()),
        })
        .collect()
}

#[test]
fn gathers_start_ahead_and_the_last_reductions_arrive_during_the_optimizer() {
    let gathers_before_a_wait = |order: &[(String, String)]| {
        let until = order
            .iter()
            .position(|(verb, _)| verb == "wait")
            .expect("a wait");
        let launched = order[..until]
            .iter()
            .filter(|(verb, what)| verb == "launch" && what.starts_with("all_gather"));
        let modules = launched.map(|(_, what)| what.split_once(' ').expect("a module").1);
        modules.collect::<std::collections::BTreeSet<_>>().len()
    };
    for prefetch in [0, 1, 2] {
        let order = order(prefetch);
        assert_eq!(
            gathers_before_a_wait(&order),
            1 + prefetch as usize,
            "{order:#?}"
        );
        // What the second module needs is waited for after the first has computed.
        let until = order
            .iter()
            .position(|(verb, what)| verb == "compute" && what.ends_with("blocks.0.up"));
        let waits = order[..until.expect("it computes")]
            .iter()
            .filter(|(verb, _)| verb == "wait");
        assert!(waits.clone().count() > 0);
        assert!(
            waits
                .clone()
                .all(|(_, what)| what == "all_gather blocks.0.up"),
            "{order:#?}"
        );

        let is_reduction =
            |what: &str| what.starts_with("reduce_scatter") || what.starts_with("all_reduce");
        let last = order
            .iter()
            .rposition(|(verb, what)| verb == "launch" && is_reduction(what))
            .expect("one");
        let waited = order[last..]
            .iter()
            .position(|(verb, _)| verb == "wait")
            .expect("it is waited for");
        let computed = order[last..][..waited]
            .iter()
            .filter(|(verb, _)| verb == "compute")
            .count();
        assert!(
            computed > 10,
            "{computed} operations: {:#?}",
            &order[last..]
        );
    }
}
