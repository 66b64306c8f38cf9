//! Time, in nanoseconds: how long it takes to move bytes over a mesh, and to compute on one rank.
//!
//! | what | formula | where nothing is known |
//! | --- | --- | --- |
//! | a collective | `rounds x latency + bytes x 8 / bandwidth` of the slowest link of its axes ([`Links`]) | 512 + bytes |
//! | an operation | its flops, and the bytes that it writes | 100 teraflops and 1 terabyte a second |
//!
//! Without links, a collective costs what it moves: a byte takes a nanosecond, and to start one takes as long as 512
//! bytes. These figures choose between layouts; they predict no time.

use burn_dist_mesh::{AxisIndex, Link, Links, MeshShape, Rank, Topology};

/// Starting a collective over a link of which nothing is known.
const START_NS: f64 = 512.0;
/// A byte over such a link: one gigabyte a second.
const BYTE_NS: f64 = 1.0;
/// A floating-point operation of a rank: 100 teraflops a second.
const FLOP_NS: f64 = 1.0 / 100_000.0;
const NS_PER_US: f64 = 1e3;
/// A byte that a rank writes to its memory: one terabyte a second.
const WRITE_NS: f64 = 1.0 / 1_000.0;

/// Returns how long a rank computes that does so many floating-point operations and writes so many bytes.
pub fn work_ns(flops: f64, bytes: f64) -> f64 {
    flops * FLOP_NS + bytes * WRITE_NS
}

/// The costs of the devices that ranks run on, as far as they are known. Nothing is made to take that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCosts {
    /// Devices of a node; ranks fill nodes in order.
    pub per_node: usize,
    /// To the devices of its node; none if it is slower or faster than any [`Link`].
    pub inside: Option<Link>,
    /// To those of other nodes.
    pub between: Option<Link>,
    /// Flops of products in a microsecond, by the size of their operands' elements: of 8, 4, 2 bytes and of one.
    pub flops_per_us: [u64; 4],
    /// The work of a product besides, in flops.
    pub flops_besides: u64,
    /// Bytes that memory moves in a microsecond.
    pub bytes_per_us: u64,
    /// The time of every kernel beside its work, in nanoseconds.
    pub start_ns: u64,
}

impl DeviceCosts {
    /// Returns whether ranks are on several nodes.
    pub fn spans(&self, ranks: &[Rank]) -> bool {
        let node = |rank: &Rank| rank.0 as usize / self.per_node.max(1);
        ranks
            .windows(2)
            .any(|pair| node(&pair[0]) != node(&pair[1]))
    }

    /// Returns how long a product takes of operands with elements of so many bytes, in nanoseconds.
    pub fn product_ns(&self, flops: f64, elem_bytes: usize) -> f64 {
        let [f64s, f32s, f16s, f8s] = self.flops_per_us;
        let per_us = match elem_bytes {
            8 => f64s,
            2 => f16s,
            1 => f8s,
            _ => f32s,
        };
        let flops = flops + self.flops_besides as f64;
        flops / per_us.max(1) as f64 * NS_PER_US + self.start_ns as f64
    }

    /// Returns how long a kernel takes that copies so many bytes, in nanoseconds.
    pub fn copy_ns(&self, bytes: f64) -> f64 {
        2.0 * bytes / self.bytes_per_us.max(1) as f64 * NS_PER_US + self.start_ns as f64
    }
}

/// The axes of a mesh with what is known of their links.
///
/// ```
/// use burn_dist_mesh::{Links, MeshShape, Topology};
/// use burn_dist_layout::cost::Network;
///
/// let mesh = MeshShape::parse("fsdp=2,tp=4")?;
/// let [fsdp, tp] = [mesh.axis("fsdp")?, mesh.axis("tp")?];
/// let links: Links = "tp:latency_us=1,gbps=80".parse()?;
/// let network = Network::new(&mesh, &links, &Topology::single(8));
/// assert_eq!(network.transfer_ns(&[tp], 3, 1000.0), 3.0 * 1000.0 + 100.0);
/// assert_eq!(network.transfer_ns(&[fsdp], 3, 1000.0), 512.0 + 1000.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Network<'a> {
    mesh: &'a MeshShape,
    /// Per axis.
    links: Vec<Option<Link>>,
}

impl<'a> Network<'a> {
    /// Returns the network of a mesh with these nodes and links; an axis that is on several nodes has the link
    /// between them.
    pub fn new(mesh: &'a MeshShape, links: &Links, topology: &Topology) -> Self {
        if links.is_empty() {
            return Self::unknown(mesh);
        }
        let link = |axis| {
            let spans = mesh
                .ranks()
                .any(|rank| topology.spans(&mesh.group_of(rank, &[axis])));
            links.on([mesh.name(axis)], spans)
        };
        Self {
            mesh,
            links: mesh.axis_indices().map(link).collect(),
        }
    }

    /// Returns the network of a mesh of whose links nothing is known.
    pub fn unknown(mesh: &'a MeshShape) -> Self {
        Self {
            mesh,
            links: vec![None; mesh.axes().len()],
        }
    }

    /// Takes the links of devices for axes of which nothing else is known.
    pub fn or_devices(mut self, devices: Option<&DeviceCosts>) -> Self {
        let mesh = self.mesh;
        let Some(devices) = devices else {
            return self;
        };
        let of_axes = self.links.iter_mut().zip(mesh.axis_indices());
        for (link, axis) in of_axes.filter(|(link, _)| link.is_none()) {
            let mut groups = mesh.ranks().map(|rank| mesh.group_of(rank, &[axis]));
            *link = match groups.any(|group| devices.spans(&group)) {
                true => devices.between,
                false => devices.inside,
            };
        }
        self
    }

    /// Returns the mesh.
    pub fn mesh(&self) -> &'a MeshShape {
        self.mesh
    }

    /// Returns whether something is known of the link of an axis.
    pub fn is_known(&self, axis: AxisIndex) -> bool {
        self.links[usize::from(axis.0)].is_some()
    }

    /// Returns how long a collective over `axes` takes by which a rank receives `bytes` in so many rounds.
    pub fn transfer_ns(&self, axes: &[AxisIndex], rounds: u64, bytes: f64) -> f64 {
        let known = axes
            .iter()
            .filter_map(|axis| self.links[usize::from(axis.0)]);
        match known.reduce(Link::slowest) {
            Some(link) => rounds as f64 * link.latency_ns() as f64 + bytes * link.byte_ns(),
            None => START_NS + bytes * BYTE_NS,
        }
    }

    /// Returns how long bytes take along an axis, in a collective that starts anyway.
    pub fn bytes_ns(&self, axis: AxisIndex, bytes: f64) -> f64 {
        let known = self.links[usize::from(axis.0)];
        bytes * known.map_or(BYTE_NS, Link::byte_ns)
    }
}
