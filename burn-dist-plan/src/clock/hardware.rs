//! The hardware that a plan is simulated on, as plain numbers; its text form is TOML.

use serde::{Deserialize, Serialize};

use crate::cost::DeviceCosts;
use crate::mesh::collective::Kind;
use crate::mesh::{DType, Link, Split};

/// The part of a ring's bandwidth that a tree reaches.
const TREE_BANDWIDTH: f64 = 0.92;
const NS_PER_US: f64 = 1e3;
const NS_PER_S: f64 = 1e9;
const US_PER_S: f64 = 1e6;
const TERA: f64 = 1e12;
const GIGA: f64 = 1e9;
const GIB: f64 = (1u64 << 30) as f64;

/// The presets: their names and texts. Each constant has its source in a comment there.
const PRESETS: [(&str, &str); 4] = [
    ("a100", include_str!("presets/a100.toml")),
    ("h100", include_str!("presets/h100.toml")),
    (
        "h100-hbm2e-500w",
        include_str!("presets/h100-hbm2e-500w.toml"),
    ),
    ("h200", include_str!("presets/h200.toml")),
];

/// Devices, their links and their hosts, all alike.
///
/// Text form: TOML; every key has to be there, and no other. Law: reading the text form gives the same hardware.
///
/// ```
/// use burn_dist_plan::clock::Hardware;
///
/// let h100 = Hardware::preset("h100")?;
/// assert_eq!(h100.memory.gb_per_s, 3350.0);
/// assert_eq!(Hardware::from_toml(&h100.to_toml())?, h100);
/// # Ok::<(), burn_dist_plan::clock::HardwareError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// For people.
    pub name: String,
    /// Devices of a node; ranks fill nodes in order.
    pub devices_per_node: usize,
    /// Products of matrices.
    pub products: Products,
    /// The memory of a device.
    pub memory: Memory,
    /// Kernels.
    pub kernels: Kernels,
    /// The host, which hands out kernels.
    pub host: Host,
    /// Links inside a node and between nodes.
    pub links: NodeLinks,
}

/// The operands of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// Tensors of a type.
    Of(DType),
    /// Tensors in 8-bit floats, which have no type of their own.
    Float8,
}

impl From<DType> for Operands {
    fn from(dtype: DType) -> Self {
        Self::Of(dtype)
    }
}

/// How fast a device multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Products {
    /// Peak of 64-bit floats, in teraflops per second.
    pub f64_tflops: f64,
    /// Peak of 32-bit floats, and of what is not named here.
    pub f32_tflops: f64,
    /// Peak of 16-bit floats of either kind.
    pub f16_tflops: f64,
    /// Peak of 8-bit floats of either kind.
    pub f8_tflops: f64,
    /// The part of the peak that the largest product reaches.
    pub efficiency: f64,
    /// The same of products of 8-bit floats.
    pub f8_efficiency: f64,
    /// A product of so many gigaflops reaches half of that.
    pub half_gflop: f64,
    /// The standard deviation of the rate of devices, as a part of their mean: ranks wait for the slowest device.
    pub spread: f64,
}

/// The memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Its size, in GiB.
    pub gib: f64,
    /// The part of it that no tensor gets: the runtime, buffers of collectives, gaps between tensors.
    pub reserved_gib: f64,
    /// Its bandwidth, in gigabytes per second.
    pub gb_per_s: f64,
    /// The part of the bandwidth that a kernel reaches.
    pub efficiency: f64,
}

/// Kernels of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernels {
    /// The time of every kernel on the device beside its work, in microseconds.
    pub start_us: f64,
    /// True if a chain of operations between products runs as one kernel, as a compiler makes it.
    pub compile: bool,
    /// The part of the chain's traffic between its own operations, and of its starts, that this saves.
    pub fusion: f64,
    /// The part of the device's multiprocessors that a collective takes while it runs: kernels beside it have the rest.
    pub collective_share: f64,
}

/// The host of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// To hand out an operation, in microseconds.
    pub operation_us: f64,
    /// To hand out a collective.
    pub collective_us: f64,
    /// Bandwidth between host and device, in gigabytes per second.
    pub gb_per_s: f64,
}

/// The links of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLinks {
    /// To the devices of its node.
    pub inside: DeviceLink,
    /// To those of other nodes.
    pub between: DeviceLink,
}

/// One link of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceLink {
    /// Bandwidth in one direction, in gigabytes per second.
    pub gb_per_s: f64,
    /// The part of it that a large collective reaches.
    pub efficiency: f64,
    /// The time of a step of the ring, in microseconds.
    pub latency_us: f64,
}

/// Hardware that is not known, or cannot be.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HardwareError {
    /// A name without a preset.
    #[error(
        "there is no hardware `{name}`: the presets are {}; a file may describe any other",
        presets()
    )]
    UnknownPreset {
        /// The name that was asked for.
        name: String,
    },
    /// A text that does not describe hardware.
    #[error(
        "cannot read the hardware: {problem}\nthe presets {} have every key",
        presets()
    )]
    Malformed {
        /// Which key, where, and what was found.
        problem: String,
    },
    /// A number that no hardware has.
    #[error("cannot read the hardware: `{key}` is {found}, and has to be {allowed}")]
    OutOfRange {
        /// Path of the key.
        key: &'static str,
        /// Its value.
        found: f64,
        /// The values that it may have.
        allowed: &'static str,
    },
}

burn_dist_mesh::debug_by_message!(HardwareError);

fn presets() -> String {
    Hardware::preset_names().collect::<Vec<_>>().join(", ")
}

impl Hardware {
    /// Returns the names of the presets.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|(name, _)| *name)
    }

    /// Returns a preset.
    ///
    /// # Errors
    /// [`HardwareError::UnknownPreset`] with the names of all presets.
    pub fn preset(name: &str) -> Result<Self, HardwareError> {
        match PRESETS.iter().find(|(preset, _)| *preset == name) {
            Some((_, text)) => Self::from_toml(text),
            None => Err(HardwareError::UnknownPreset { name: name.into() }),
        }
    }

    /// Reads hardware from its text form.
    ///
    /// # Errors
    /// [`HardwareError::Malformed`] if a key is missing, unknown or of the wrong type; [`HardwareError::OutOfRange`].
    pub fn from_toml(text: &str) -> Result<Self, HardwareError> {
        let hardware: Self = toml::from_str(text).map_err(|error| HardwareError::Malformed {
            problem: error.to_string().trim_end().to_owned(),
        })?;
        hardware.check()?;
        Ok(hardware)
    }

    /// Returns the text form.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers and texts under fixed keys")
    }

    /// Says whether chains of operations run as one kernel.
    pub fn compiled(mut self, compile: bool) -> Self {
        self.kernels.compile = compile;
        self
    }

    fn check(&self) -> Result<(), HardwareError> {
        let (products, memory, kernels, host) =
            (self.products, self.memory, self.kernels, self.host);
        let (inside, between) = (self.links.inside, self.links.between);
        let above_zero = [
            ("devices_per_node", self.devices_per_node as f64),
            ("products.f64_tflops", products.f64_tflops),
            ("products.f32_tflops", products.f32_tflops),
            ("products.f16_tflops", products.f16_tflops),
            ("products.f8_tflops", products.f8_tflops),
            ("memory.gib", memory.gib),
            ("memory.gb_per_s", memory.gb_per_s),
            ("host.gb_per_s", host.gb_per_s),
            ("links.inside.gb_per_s", inside.gb_per_s),
            ("links.between.gb_per_s", between.gb_per_s),
        ];
        let not_below_zero = [
            ("products.half_gflop", products.half_gflop),
            ("memory.reserved_gib", memory.reserved_gib),
            ("kernels.start_us", kernels.start_us),
            ("host.operation_us", host.operation_us),
            ("host.collective_us", host.collective_us),
            ("links.inside.latency_us", inside.latency_us),
            ("links.between.latency_us", between.latency_us),
        ];
        let shares = [
            ("products.efficiency", products.efficiency),
            ("products.f8_efficiency", products.f8_efficiency),
            ("memory.efficiency", memory.efficiency),
            ("links.inside.efficiency", inside.efficiency),
            ("links.between.efficiency", between.efficiency),
        ];
        let parts = [
            ("kernels.fusion", kernels.fusion),
            ("kernels.collective_share", kernels.collective_share),
            ("products.spread", products.spread),
        ];
        let all = |keys: &[(&'static str, f64)], allowed, is_fine: fn(f64) -> bool| {
            let wrong = keys.iter().find(|(_, found)| !is_fine(*found));
            wrong.map_or(Ok(()), |&(key, found)| {
                Err(HardwareError::OutOfRange {
                    key,
                    found,
                    allowed,
                })
            })
        };
        all(&above_zero, "above 0", |x| x > 0.0 && x.is_finite())?;
        all(&not_below_zero, "0 or more", |x| x >= 0.0 && x.is_finite())?;
        all(&shares, "above 0 and at most 1", |x| x > 0.0 && x <= 1.0)?;
        all(&parts, "from 0 to 1", |x| (0.0..=1.0).contains(&x))
    }

    /// Returns the peak of products of such operands, in flops per second.
    pub fn peak_flops(&self, operands: impl Into<Operands>) -> f64 {
        let tflops = match operands.into() {
            Operands::Float8 => self.products.f8_tflops,
            Operands::Of(DType::F64) => self.products.f64_tflops,
            Operands::Of(DType::F16 | DType::BF16) => self.products.f16_tflops,
            Operands::Of(_) => self.products.f32_tflops,
        };
        tflops * TERA
    }

    /// Returns what the largest product of such operands reaches of their peak, in flops per second.
    pub fn reached_flops(&self, operands: impl Into<Operands>) -> f64 {
        let operands = operands.into();
        let efficiency = match operands {
            Operands::Float8 => self.products.f8_efficiency,
            Operands::Of(_) => self.products.efficiency,
        };
        self.peak_flops(operands) * efficiency
    }

    /// Returns how long a product takes, in nanoseconds: `(flops + half) / (peak x efficiency)`.
    pub fn product_ns(&self, flops: f64, operands: impl Into<Operands>) -> f64 {
        (flops + self.products.half_gflop * GIGA) / self.reached_flops(operands) * NS_PER_S
    }

    /// Returns how long a kernel takes to read and write so many bytes, in nanoseconds.
    pub fn memory_ns(&self, bytes: f64) -> f64 {
        bytes / (self.memory.gb_per_s * GIGA * self.memory.efficiency) * NS_PER_S
    }

    /// Returns what every kernel takes beside its work, in nanoseconds.
    pub fn start_ns(&self) -> f64 {
        self.kernels.start_us * NS_PER_US
    }

    /// Returns how much longer the slowest of so many devices takes for a product than the mean of all.
    ///
    /// Devices of one kind run at different clocks under one limit of power, and ranks that wait for each other in every
    /// layer go at the pace of the slowest: `1 + spread x sqrt(2 ln devices)`, which bounds the mean maximum of as many
    /// normally distributed numbers. The clock of memory is the same everywhere.
    ///
    /// Source: Sinha et al., "Not All GPUs Are Created Equal" (SC 2022, arXiv:2208.11035).
    pub fn slowest(&self, devices: usize) -> f64 {
        1.0 + self.products.spread * (2.0 * (devices.max(1) as f64).ln()).sqrt()
    }

    /// Returns the part of a device that a collective takes from kernels that run beside it.
    ///
    /// One that computes a sum or has a block for every member keeps multiprocessors for itself, one for each channel of
    /// NCCL. What goes from one rank to one other, as shifts and messages between stages do, takes none: inside a node the
    /// copy engines move it, and between nodes NCCL has two channels for each peer.
    pub fn taken_beside(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Shift | Kind::Send | Kind::Recv => 0.0,
            _ => self.kernels.collective_share,
        }
    }

    /// Returns how long the host takes to hand out an operation, in nanoseconds.
    pub fn operation_ns(&self) -> f64 {
        self.host.operation_us * NS_PER_US
    }

    /// Returns how long the host takes to hand out a collective, in nanoseconds.
    pub fn launch_ns(&self) -> f64 {
        self.host.collective_us * NS_PER_US
    }

    /// Returns how long bytes take between host and device, in nanoseconds.
    pub fn copy_ns(&self, bytes: u64) -> f64 {
        bytes as f64 / (self.host.gb_per_s * GIGA) * NS_PER_S
    }

    /// Returns the size of a device's memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.memory.gib * GIB) as u64
    }

    /// Returns what of a device's memory no tensor gets, in bytes.
    pub fn reserved_bytes(&self) -> u64 {
        (self.memory.reserved_gib * GIB) as u64
    }

    /// Returns what it takes, as the planner weighs it.
    pub fn device_costs(&self) -> DeviceCosts {
        let link = |link: DeviceLink| {
            let gbps = link.gb_per_s * link.efficiency * 8.0;
            Link::new(link.latency_us, gbps).ok()
        };
        DeviceCosts {
            per_node: self.devices_per_node,
            inside: link(self.links.inside),
            between: link(self.links.between),
            flops_per_us: [
                Operands::Of(DType::F64),
                Operands::Of(DType::F32),
                Operands::Of(DType::F16),
                Operands::Float8,
            ]
            .map(|operands| (self.reached_flops(operands) / US_PER_S) as u64),
            flops_besides: (self.products.half_gflop * GIGA) as u64,
            bytes_per_us: (self.memory.gb_per_s * self.memory.efficiency * GIGA / US_PER_S) as u64,
            start_ns: self.start_ns() as u64,
        }
    }

    /// Returns how long a collective takes by which a rank receives `bytes`, in nanoseconds.
    ///
    /// A group on `nodes` nodes with `per_node` members on each runs one ring over each of their links between nodes,
    /// so that each carries its part of the bytes:
    ///
    /// ```text
    /// steps inside x latency inside + steps between x latency between
    ///     + max(bytes / bandwidth inside, bytes / (per_node x bandwidth between))
    /// ```
    ///
    /// One pass around the ring is `members - 1` steps, `nodes - 1` of them between nodes; an all-reduce is two passes. A
    /// shift is one step, in which one member of a node sends to the next node.
    ///
    /// An all-reduce takes a tree over the nodes instead where that is faster, which it is for few bytes over many nodes:
    ///
    /// ```text
    /// 2 x (per_node - 1) x latency inside + 2 x log2(nodes) x latency between
    ///     + members / (members - 1) / 0.92 x the bytes as in a ring
    /// ```
    ///
    /// Source: ring and tree of NCCL's model (`src/graph/tuning.cc`); [`mesh::link`](crate::mesh::link) for the bytes.
    pub fn communication_ns(&self, kind: Kind, on: Split, bytes: u64) -> f64 {
        let (inside, between) = (self.links.inside, self.links.between);
        let rounds = kind.rounds(on.nodes * on.per_node) as f64;
        let others = on.nodes.saturating_sub(1);
        // Steps between nodes, and the members of a node that send in them.
        let (steps_between, senders) = match kind {
            Kind::Shift => (others.min(1), 1),
            Kind::AllReduce => (2 * others, on.per_node),
            _ => (others, on.per_node),
        };
        let steps_between = steps_between as f64;
        let latency = steps_between * between.latency_us
            + (rounds - steps_between).max(0.0) * inside.latency_us;
        let over = |link: DeviceLink, links: usize| {
            let bandwidth = link.gb_per_s * GIGA * link.efficiency;
            bytes as f64 / (links as f64 * bandwidth) * NS_PER_S
        };
        let inside = match on.per_node {
            ..=1 => 0.0,
            _ => over(inside, 1),
        };
        let between = match on.nodes {
            ..=1 => 0.0,
            _ => over(between, senders),
        };
        let bytes_ns = inside.max(between);
        let ring = latency * NS_PER_US + bytes_ns;
        if kind != Kind::AllReduce || on.nodes <= 1 {
            return ring;
        }
        let levels = f64::from(on.nodes.ilog2());
        let on_node = on.per_node.saturating_sub(1) as f64;
        let latency =
            2.0 * (on_node * self.links.inside.latency_us + levels * self.links.between.latency_us);
        let members = (on.nodes * on.per_node) as f64;
        let tree = latency * NS_PER_US + bytes_ns * members / (members - 1.0) / TREE_BANDWIDTH;
        ring.min(tree)
    }
}
