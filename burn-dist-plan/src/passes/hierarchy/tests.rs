use super::*;
use crate::PlanOptions;
use crate::mesh::Nodes;
use crate::planner::Planner;
use crate::tests::three_layers;
use crate::toy::options;

const COMPOSED: [Kind; 3] = [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather];
const TWO_OF_FOUR: Split = Split {
    nodes: 2,
    per_node: 4,
};
/// Ten microseconds everywhere; a nanosecond a byte inside, ten between.
const LINKS: &str = "inside:latency_us=10,gbps=8;between:latency_us=10,gbps=0.8";

/// Asks about a mesh of one axis over two nodes of four ranks.
fn on_two_nodes<T>(links: &Links, ask: impl FnOnce(&Hierarchy, &[AxisIndex]) -> T) -> T {
    let mesh: MeshShape = "a:model=8".parse().expect("a mesh");
    let topology = Nodes::Each(4).topology(8, &[]).expect("nodes");
    let hierarchy = Hierarchy {
        mesh: &mesh,
        topology: &topology,
        links,
        bytes_min: None,
        axes: vec![Some(TWO_OF_FOUR)],
        groups: RefCell::default(),
    };
    ask(&hierarchy, &[AxisIndex(0)])
}

fn stage_times(links: &Links, bytes: u64) -> [Vec<u64>; 3] {
    on_two_nodes(links, |hierarchy, axes| {
        let times = |kind| hierarchy.stage_times(kind, TWO_OF_FOUR, bytes, axes);
        COMPOSED.map(|kind| times(kind).collect())
    })
}

#[test]
fn a_stage_takes_its_rounds_and_its_bytes() {
    let links: Links = LINKS.parse().expect("links");
    // Inside: 3 rounds, and 3/4 of 8,000 bytes; between: of 2,000 bytes, half in a round, or for an all-reduce all
    // in two.
    let (inside, between) = (30_000 + 6_000, 10_000 + 10_000);
    assert_eq!(
        stage_times(&links, 8_000),
        [
            vec![inside, 2 * between, inside],
            vec![inside, between],
            vec![between, inside],
        ]
    );
    // Links that nothing is known of: bytes, of which those between nodes count for ten.
    assert_eq!(
        stage_times(&Links::default(), 8_000),
        [
            vec![6_000, 20_000, 6_000],
            vec![6_000, 10_000],
            vec![10_000, 6_000],
        ]
    );
}

#[test]
fn composing_pays_where_its_stages_together_take_less_than_a_flat_call() {
    let links: Links = LINKS.parse().expect("links");
    for (index, kind) in COMPOSED.into_iter().enumerate() {
        let mut answers = [0, 0];
        for bytes in (0..500).map(|i| 8 * i) {
            // Between eight members: three rounds that double what is known, or a ring.
            let ring = bytes / 8 * 7;
            let flat = match kind {
                Kind::AllReduce => (30_000 + 30 * bytes).min(60_000 + 20 * ring),
                _ => 30_000 + 10 * ring,
            };
            let composed: u64 = stage_times(&links, bytes)[index].iter().sum();
            let pays = on_two_nodes(&links, |hierarchy, axes| {
                hierarchy.pays(kind, TWO_OF_FOUR, bytes, axes)
            });
            assert_eq!(pays, composed < flat, "{kind:?} of {bytes} bytes");
            answers[usize::from(pays)] += 1;
        }
        assert!(answers.iter().all(|count| *count > 0), "{kind:?}");
    }
}

#[test]
fn what_is_not_composed_keeps_why() {
    let b = three_layers("fsdp=4", 8);
    let options = PlanOptions {
        topology: Nodes::Each(2).topology(4, &[]).expect("nodes"),
        hierarchy_bytes_min: Some(u64::MAX),
        ..options(&b.mesh)
    };
    let mut planner = Planner::new(&b.window, &b.mesh, &options);
    planner.run(Some("hierarchy")).expect("a pass");
    let program = &planner.state.programs[0];
    let alone = program.steps.iter().filter_map(|step| match step {
        ProgramStep::Move(step) => Some(step),
        _ => None,
    });
    let moves = alone.chain(program.launched().map(|(_, step)| step));
    let over_nodes = moves.filter(|step| step.step.kind.collective().is_some());
    let flat = OnNodes::Flat("so small that more calls take longer");
    let found: Vec<OnNodes> = over_nodes.map(|step| step.on_nodes).collect();
    assert_eq!(found, vec![flat; found.len()]);
    assert!(found.len() > 3);
}
