//! The time and the memory of a step by closed forms: no step is planned for them, so that all candidates can be put
//! in order.
//!
//! They know a model by its flops, parameters and layers alone, and take a layer for one of a transformer, which has
//! about `12 x width^2` parameters. So they may be wrong by much, and decide only which candidates are looked at first.

use super::domain::{Candidate, Domain, STATE_BYTES};
use crate::ActivationCheckpoint;
use crate::clock::{Hardware, Operands};
use crate::mesh::DType;
use burn_dist_mesh::Split;
use burn_dist_mesh::collective::Kind;

/// A model's step on hardware, in few numbers.
pub(super) struct Forms<'a> {
    pub domain: &'a Domain,
    pub hardware: &'a Hardware,
    /// Flops of a step over all ranks.
    pub flops: f64,
    /// The type of products.
    pub dtype: DType,
}

/// The figures of a step by closed forms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rough {
    pub step_s: f64,
    pub peak_bytes: f64,
}

/// Kernels of a layer, forward and backward, and how often they move its width, for each token.
const KERNELS: f64 = 120.0;
const MOVES: f64 = 100.0;
const MOVES_COMPILED: f64 = 40.0;
/// Widths that a layer holds of a token for the backward, by what is made again, and while it runs.
const HELD: f64 = 17.0;
const HELD_SELECTIVE: f64 = 9.0;
const HELD_FULL: f64 = 1.0;
/// The part of a layer's forward that is made again.
const AGAIN_SELECTIVE: f64 = 0.15;
/// The part of transfers along tp and cp that no product runs beside.
const EXPOSED: f64 = 0.5;

impl Forms<'_> {
    pub(super) fn rough(&self, of: &Candidate) -> Rough {
        let [pp, dp, fsdp, cp, tp] = of.sizes.map(|size| size as f64);
        let Domain {
            devices,
            rows,
            each,
            layers,
            parameters,
            ..
        } = *self.domain;
        let hardware = self.hardware;
        let (layers, parameters) = (layers.max(1) as f64, parameters as f64);
        let (tokens, bytes) = ((rows * each) as f64, self.dtype.size() as f64);
        let width = (parameters / layers / 12.0).sqrt();
        let microbatches = of.microbatches as f64;
        // Of a microbatch on a rank; of the layers on a rank, in all microbatches.
        let held_tokens = tokens / microbatches / (dp * fsdp * cp);
        let visits = microbatches * layers / pp;
        let (held, again) = match of.checkpoint {
            ActivationCheckpoint::Full => (HELD_FULL, 1.0),
            ActivationCheckpoint::Selective | ActivationCheckpoint::Bytes(_) => {
                (HELD_SELECTIVE, AGAIN_SELECTIVE)
            }
            ActivationCheckpoint::EveryNth(layers) => {
                let part = 1.0 / layers.get() as f64;
                (HELD + (HELD_FULL - HELD) * part, part)
            }
            ActivationCheckpoint::None => (HELD, 0.0),
        };
        let more = 1.0 + again / 3.0;

        let operands = match of.float8 {
            Some(_) => Operands::Float8,
            None => Operands::Of(self.dtype),
        };
        let products = hardware.product_ns(self.flops * more / devices as f64, operands);
        let moves = match hardware.kernels.compile {
            true => MOVES_COMPILED,
            false => MOVES,
        };
        let moved = moves * more * tokens * layers * width * bytes / devices as f64;
        let kernels = visits * KERNELS * more;
        let device = products + hardware.memory_ns(moved) + kernels * hardware.start_ns();
        let busy = device.max(kernels * hardware.operation_ns());

        let over = |kind: Kind, split: Split, received: f64| match split.nodes * split.per_node {
            ..=1 => 0.0,
            _ => hardware.communication_ns(kind, split, received as u64) + hardware.launch_ns(),
        };
        let part = |members: f64| (members - 1.0) / members;
        // Parameters of a layer that a rank computes with, in as many parts as there are ranks along fsdp and cp.
        let of_layer = parameters / layers / tp;
        let shared = self.split(of, [2, 3]);
        let gather = over(Kind::AllGather, shared, of_layer * bytes * part(fsdp * cp));
        let scatter = over(
            Kind::ReduceScatter,
            shared,
            of_layer * 4.0 * part(fsdp * cp),
        );
        let rest = of_layer / (fsdp * cp) * 4.0;
        let replicas = over(
            Kind::AllReduce,
            self.split(of, [1, 1]),
            2.0 * rest * part(dp),
        );
        let of_parameters = visits * (2.0 * gather + scatter) + layers / pp * replicas;

        let activations = held_tokens * width * bytes;
        let rounds = 8.0 + 4.0 * again;
        let along_tp = over(
            Kind::AllGather,
            self.split(of, [4, 4]),
            activations * part(tp),
        );
        // Keys and values, forward, and with their gradients backward.
        let along_cp = over(
            Kind::AllGather,
            self.split(of, [3, 3]),
            activations / tp * (cp - 1.0) / 2.0,
        );
        let exposed = EXPOSED * visits * (rounds * along_tp + 3.0 * along_cp);

        let nanoseconds = (busy.max(of_parameters) + exposed) * (1.0 + of.bubble());
        let under_way = pp.min(microbatches);
        let layers_held = layers / pp * under_way * held + HELD;
        let peak_bytes = hardware.reserved_bytes() as f64
            + STATE_BYTES as f64 * parameters / of.parts_at_rest() as f64
            + 2.0 * of_layer * bytes
            + layers_held * activations / tp;
        Rough {
            step_s: nanoseconds / 1e9,
            peak_bytes,
        }
    }

    /// Returns how the groups along these axes, from the first to the last, lie on nodes.
    fn split(&self, of: &Candidate, [first, last]: [usize; 2]) -> Split {
        let size: usize = of.sizes[first..=last].iter().product();
        let inside: usize = of.sizes[last + 1..].iter().product();
        let per_node = (self.domain.per_node / inside).clamp(1, size);
        Split {
            nodes: size.div_ceil(per_node),
            per_node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::ScheduleKind;

    fn of(sizes: [usize; 5], microbatches: usize, checkpoint: ActivationCheckpoint) -> Candidate {
        Candidate {
            sizes,
            microbatches,
            schedule: (ScheduleKind::default(), 1),
            checkpoint,
            float8: None,
        }
    }

    /// The forms order what no plan is needed for: what is made again takes time and spares memory, tp between few rows
    /// moves more than fsdp, and replicas hold more.
    #[test]
    fn forms_order_candidates_as_their_sizes_do() {
        let hardware = Hardware::preset("h100").expect("a preset");
        let domain = Domain {
            devices: 64,
            per_node: 8,
            rows: 256,
            each: 4096,
            splits_model: true,
            layers: 32,
            parameters: 8_000_000_000,
            room: 75 << 30,
            float8: vec![None],
        };
        let forms = Forms {
            domain: &domain,
            hardware: &hardware,
            flops: 6.0 * 8e9 * 256.0 * 4096.0,
            dtype: DType::BF16,
        };
        let [none, full] = [ActivationCheckpoint::None, ActivationCheckpoint::Full];
        let flat = forms.rough(&of([1, 1, 64, 1, 1], 2, none));
        let again = forms.rough(&of([1, 1, 64, 1, 1], 2, full));
        assert!(flat.step_s < again.step_s && flat.peak_bytes > again.peak_bytes);
        let split = forms.rough(&of([1, 1, 8, 1, 8], 2, none));
        assert!(flat.step_s < split.step_s, "{flat:?} {split:?}");
        let replicas = forms.rough(&of([1, 8, 8, 1, 1], 2, none));
        assert!(flat.peak_bytes < replicas.peak_bytes);
        // No step is faster than its products at the peak.
        let peak = hardware.peak_flops(DType::BF16) * 64.0;
        assert!(flat.step_s > forms.flops / peak && flat.step_s < 3.0 * forms.flops / peak);
    }

    #[test]
    fn groups_lie_on_nodes_as_ranks_follow_each_other() {
        let hardware = Hardware::preset("h100").expect("a preset");
        let domain = Domain {
            devices: 64,
            per_node: 8,
            rows: 1,
            each: 1,
            splits_model: true,
            layers: 1,
            parameters: 1,
            room: 1,
            float8: vec![None],
        };
        let forms = Forms {
            domain: &domain,
            hardware: &hardware,
            flops: 1.0,
            dtype: DType::BF16,
        };
        let mesh = of([1, 2, 4, 2, 4], 1, ActivationCheckpoint::None);
        let splits = [[4, 4], [3, 3], [2, 3], [1, 1]].map(|axes| {
            let Split { nodes, per_node } = forms.split(&mesh, axes);
            (nodes, per_node)
        });
        assert_eq!(splits, [(1, 4), (1, 2), (4, 2), (2, 1)]);
    }
}
