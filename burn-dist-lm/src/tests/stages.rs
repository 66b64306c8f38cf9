//! The stages of a decoder, for people.

use burn::tensor::Device;
use burn_dist::Parallelize;
use burn_dist::mesh::MeshShape;
use burn_dist::schedule::ScheduleKind;
use burn_dist::trainer::stages::table;

use crate::model::LlamaConfig;

#[test]
fn stages_are_written_with_their_ranks() {
    let config = LlamaConfig {
        num_layers: 5,
        ..LlamaConfig::test()
    };
    let model = config.init(&Device::flex());
    let table = |mesh: &str, schedule| {
        let mesh = MeshShape::parse(mesh).unwrap();
        let plan = model.plan().schedule(schedule);
        table(&plan.resolve(&model, &mesh).unwrap(), &mesh)
    };
    assert_eq!(table("fsdp=2", ScheduleKind::OneFOneB), None);
    let text = table("pp=2,fsdp=2", ScheduleKind::OneFOneB).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "2 stages over pp, schedule 1f1b");
    assert!(lines[2].contains(" 0-1 "), "{text}");
    assert!(lines[2].ends_with("  tok_embeddings, layers 0-2"), "{text}");
    assert!(lines[3].contains(" 2-3 "), "{text}");
    assert!(lines[3].ends_with("  layers 3-4, norm, output"), "{text}");
    // There and back: the first rank has the first and the last stage.
    let text = table("pp=2", ScheduleKind::ZbV).unwrap();
    let ranks = text
        .lines()
        .skip(2)
        .map(|line| line.split_whitespace().nth(1));
    assert_eq!(ranks.flatten().collect::<Vec<_>>(), ["0", "1", "1", "0"]);
}
