//! How fast the links of a mesh are: a model of a network, as plain numbers.
//!
//! ```
//! use burn_dist_mesh::{Link, Links};
//!
//! let link: Link = "latency_us=20,gbps=10".parse()?;
//! assert_eq!(link.transfer_ns(3, 30_000_000), 3 * 20_000 + 24_000_000);
//! let links: Links = "tp:latency_us=5,gbps=100;fsdp:latency_us=20,gbps=10".parse()?;
//! assert_eq!(links.get("fsdp"), Some(link));
//! # Ok::<(), burn_dist_mesh::LinkError>(())
//! ```
//!
//! # The formula
//! A collective takes `rounds x latency + bytes x 8 / bandwidth`: bytes are those that its busiest member receives, and
//! rounds are the steps of the ring algorithm, in which every member receives from one neighbour at a time. With k
//! members and n bytes in all, an all-gather or a reduce-scatter is k-1 rounds and (k-1)/k x n bytes, an all-reduce is
//! one of each, and a shift along the ring is one round.
//!
//! Source: Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH (IJHPCA 19(1),
//! 2005), sections 3 and 4, without the term for the arithmetic of reductions; Patarasuk, Yuan: Bandwidth Optimal
//! All-reduce Algorithms for Clusters of Workstations (JPDC 69(2), 2009).
//!
//! # Nodes
//! Where a mesh lies on several nodes ([`Topology`](super::Topology)), links inside them and between them can be set
//! apart: `inside:latency_us=2,gbps=400;between:latency_us=20,gbps=40`. A group goes over the link between nodes if its
//! members are on several. No axis of a mesh with links may have one of these two names.
//!
//! Not here: congestion between groups, trees.

use std::fmt;
use std::str::FromStr;

use super::{AxisIndex, MeshError, MeshShape};

/// The names that stand for groups by nodes, not for axes.
const BY_NODE: [&str; 2] = ["inside", "between"];
const NS_PER_US: f64 = 1e3;
const NS_PER_S: f64 = 1e9;
const BITS_PER_GIGABIT: f64 = 1e9;
/// A bound on latencies that keeps sums far from overflow: a day.
const LATENCY_US_MAX: f64 = 86_400e6;
/// A bound on bandwidths: a million gigabits per second.
const GBPS_MAX: f64 = 1e6;

/// Latency and bandwidth of the link between neighbours along a mesh axis, one direction.
///
/// The text `latency_us=20,gbps=10` is 20 microseconds and 10 gigabits (1.25 gigabytes) per second. Law: parsing the
/// text form gives the same link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    latency_ns: u64,
    bits_per_s: u64,
}

/// A text or number that is not a link.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read the link `{text}`: {problem}; write latency_us=20,gbps=10 for all axes, or \
     tp:latency_us=5,gbps=100;fsdp:latency_us=20,gbps=10 axis by axis"
)]
pub struct LinkError {
    /// The text.
    pub text: String,
    /// Why it cannot be read.
    pub problem: String,
}

crate::debug_by_message!(LinkError);

impl Link {
    /// Returns a link of `latency_us` microseconds and `gbps` gigabits per second, to the nanosecond and the bit per
    /// second.
    ///
    /// # Errors
    /// [`LinkError`] if the latency is negative or longer than a day, or the bandwidth is not above zero (or above a
    /// million gigabits per second).
    pub fn new(latency_us: f64, gbps: f64) -> Result<Self, LinkError> {
        let error = |problem: String| LinkError {
            text: format!("latency_us={latency_us},gbps={gbps}"),
            problem,
        };
        if !(0.0..=LATENCY_US_MAX).contains(&latency_us) {
            return Err(error(format!(
                "latency_us is {latency_us}, and a latency is from 0 to {LATENCY_US_MAX:e} microseconds"
            )));
        }
        let bits_per_s = (gbps * BITS_PER_GIGABIT).round();
        if !(bits_per_s >= 1.0 && gbps <= GBPS_MAX) {
            return Err(error(format!(
                "gbps is {gbps}, and a bandwidth is from 1e-9 to {GBPS_MAX:e} gigabits per second"
            )));
        }
        Ok(Self {
            latency_ns: (latency_us * NS_PER_US).round() as u64,
            bits_per_s: bits_per_s as u64,
        })
    }

    /// Nanoseconds of a transfer in `rounds` steps by which a rank receives `bytes`, rounded up; see the
    /// [formula](self).
    pub fn transfer_ns(self, rounds: u64, bytes: u64) -> u64 {
        let bits = u128::from(bytes) * 8;
        let wire = (bits * 1_000_000_000).div_ceil(u128::from(self.bits_per_s));
        let total = u128::from(rounds) * u128::from(self.latency_ns) + wire;
        u64::try_from(total).unwrap_or(u64::MAX)
    }

    /// Returns how long a message takes at least, in nanoseconds.
    pub fn latency_ns(self) -> u64 {
        self.latency_ns
    }

    /// Returns how long a byte takes after the first, in nanoseconds.
    pub fn byte_ns(self) -> f64 {
        8.0 * NS_PER_S / self.bits_per_s as f64
    }

    /// The link that a path over both has: the longer latency and the lower bandwidth.
    pub fn slowest(self, other: Self) -> Self {
        Self {
            latency_ns: self.latency_ns.max(other.latency_ns),
            bits_per_s: self.bits_per_s.min(other.bits_per_s),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "latency_us={},gbps={}",
            self.latency_ns as f64 / NS_PER_US,
            self.bits_per_s as f64 / BITS_PER_GIGABIT
        )
    }
}

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let error = |problem: String| LinkError {
            text: text.to_owned(),
            problem,
        };
        let (mut latency_us, mut gbps) = (None, None);
        for part in text.split(',') {
            let part = part.trim();
            let Some((key, value)) = part.split_once('=') else {
                return Err(error(format!("`{part}` is not of the form key=number")));
            };
            let (key, value) = (key.trim(), value.trim());
            let place = match key {
                "latency_us" => &mut latency_us,
                "gbps" => &mut gbps,
                _ => {
                    return Err(error(format!(
                        "there is no `{key}`, only latency_us and gbps"
                    )));
                }
            };
            let number: f64 = value
                .parse()
                .map_err(|_| error(format!("`{value}` of {key} is not a number")))?;
            if place.replace(number).is_some() {
                return Err(error(format!("{key} is given twice")));
            }
        }
        match (latency_us, gbps) {
            (Some(latency_us), Some(gbps)) => {
                Self::new(latency_us, gbps).map_err(|found| error(found.problem))
            }
            (None, _) => Err(error("latency_us is missing".to_owned())),
            (_, None) => Err(error("gbps is missing".to_owned())),
        }
    }
}

/// The links of the axes of a mesh; axes without one take no modelled time.
///
/// Its text is one [`Link`] for all axes, `inside:link` and `between:link` for groups inside a node and between nodes,
/// `axis:link` for single axes, joined by `;`. An axis of its own name goes before those of nodes, and that
/// before the one for all. Law, of links that [`Links::check`] takes and that are not empty: parsing the text form
/// gives the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    all: Option<Link>,
    inside: Option<Link>,
    between: Option<Link>,
    axes: Vec<(String, Link)>,
}

impl Links {
    /// Returns `link` for every axis.
    pub fn all(link: Link) -> Self {
        Self {
            all: Some(link),
            ..Self::default()
        }
    }

    /// Returns `inside` for groups inside a node, `between` for groups on several.
    pub fn by_node(inside: Link, between: Link) -> Self {
        Self {
            inside: Some(inside),
            between: Some(between),
            ..Self::default()
        }
    }

    /// Sets the link of `axis`.
    pub fn with(mut self, axis: impl Into<String>, link: Link) -> Self {
        let axis = axis.into();
        self.axes.retain(|(name, _)| *name != axis);
        self.axes.push((axis, link));
        self
    }

    /// Returns whether no axis has a link.
    pub fn is_empty(&self) -> bool {
        self.all.or(self.inside).or(self.between).is_none() && self.axes.is_empty()
    }

    /// The link of the axis `axis`, inside a node.
    pub fn get(&self, axis: &str) -> Option<Link> {
        self.on([axis], false)
    }

    /// The link of a group over several axes, inside a node: the [slowest](Link::slowest) of theirs; `None` if none of
    /// them has one.
    pub fn over<'a>(&self, axes: impl IntoIterator<Item = &'a str>) -> Option<Link> {
        self.on(axes, false)
    }

    /// Returns [`Links::over`] for a group that is on several nodes if `spans_nodes`.
    pub fn on<'a>(
        &self,
        axes: impl IntoIterator<Item = &'a str>,
        spans_nodes: bool,
    ) -> Option<Link> {
        let of_nodes = match spans_nodes {
            true => self.between,
            false => self.inside,
        };
        let of_axis = |axis: &str| {
            let own = self.axes.iter().find(|(name, _)| name == axis);
            own.map(|(_, link)| *link).or(of_nodes).or(self.all)
        };
        axes.into_iter().filter_map(of_axis).reduce(Link::slowest)
    }

    /// Checks that every axis that is named exists, and that none has a name that stands for groups by nodes.
    ///
    /// # Errors
    /// [`MeshError::UnknownAxis`], [`MeshError::LinkName`].
    pub fn check(&self, mesh: &MeshShape) -> Result<(), MeshError> {
        if self.is_empty() {
            return Ok(());
        }
        let named = self.axes.iter().map(|(name, _)| name);
        let mut names = named.chain(mesh.axes().iter().map(|axis| &axis.name));
        if let Some(name) = names.find(|name| BY_NODE.contains(&name.as_str())) {
            return Err(MeshError::LinkName { name: name.clone() });
        }
        self.axes
            .iter()
            .try_for_each(|(name, _)| mesh.axis(name).map(drop))
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all.iter().map(Link::to_string);
        let nodes = BY_NODE.iter().zip([self.inside, self.between]);
        let nodes = nodes.filter_map(|(name, link)| Some(format!("{name}:{}", link?)));
        let axes = self
            .axes
            .iter()
            .map(|(name, link)| format!("{name}:{link}"));
        f.write_str(&all.chain(nodes).chain(axes).collect::<Vec<_>>().join(";"))
    }
}

impl FromStr for Links {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let error = |problem: String| LinkError {
            text: text.to_owned(),
            problem,
        };
        let mut links = Self::default();
        for part in text.split(';') {
            match part.split_once(':') {
                None => {
                    let link = part.parse().map_err(|e: LinkError| error(e.problem))?;
                    if links.all.replace(link).is_some() {
                        return Err(error("two links are for all axes".to_owned()));
                    }
                }
                Some((axis, link)) => {
                    let axis = axis.trim();
                    let of_nodes = match axis {
                        "inside" => Some(&mut links.inside),
                        "between" => Some(&mut links.between),
                        _ => None,
                    };
                    if let Some(place) = of_nodes {
                        let link = link.parse().map_err(|e: LinkError| error(e.problem))?;
                        if place.replace(link).is_some() {
                            return Err(error(format!("there are two links `{axis}`")));
                        }
                        continue;
                    }
                    if links.axes.iter().any(|(name, _)| name == axis) {
                        return Err(error(format!("axis `{axis}` has two links")));
                    }
                    let link = link.parse().map_err(|e: LinkError| error(e.problem))?;
                    links.axes.push((axis.to_owned(), link));
                }
            }
        }
        Ok(links)
    }
}

impl MeshShape {
    /// Returns the axes along which the coordinates of `ranks` differ, in mesh order: those that a group of them spans.
    pub fn axes_of(&self, ranks: &[super::Rank]) -> Vec<AxisIndex> {
        self.axis_indices()
            .filter(|&axis| {
                let mut coords = ranks.iter().map(|&rank| self.coord(rank, axis));
                let first = coords.next();
                coords.any(|coord| Some(coord) != first)
            })
            .collect()
    }

    /// Returns the names of [`MeshShape::axes_of`], joined by commas.
    pub fn axes_text(&self, ranks: &[super::Rank]) -> String {
        let axes = self.axes_of(ranks);
        let names: Vec<&str> = axes.iter().map(|&axis| self.name(axis)).collect();
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;

    fn link(latency_us: f64, gbps: f64) -> Link {
        Link::new(latency_us, gbps).unwrap()
    }

    #[test]
    fn a_transfer_takes_its_rounds_and_its_bytes() {
        // 10 gigabits per second are 1.25 bytes a nanosecond.
        let ten = link(20.0, 10.0);
        assert_eq!(ten.transfer_ns(0, 0), 0);
        assert_eq!(ten.transfer_ns(3, 0), 60_000);
        assert_eq!(ten.transfer_ns(0, 1_250_000_000), 1_000_000_000);
        assert_eq!(ten.transfer_ns(6, 125), 120_100);
        // Rounded up.
        assert_eq!(ten.transfer_ns(0, 1), 1);
        assert_eq!(link(0.0, 3.0).transfer_ns(0, 1), 3);
        assert_eq!(link(0.0005, 1.0).transfer_ns(1, 0), 1);
        assert_eq!(link(0.0, 1e-9).transfer_ns(0, u64::MAX), u64::MAX);
    }

    #[test]
    fn the_slowest_has_the_worst_of_both() {
        let links: Links = "tp:latency_us=50,gbps=100;fsdp:latency_us=20,gbps=10"
            .parse()
            .unwrap();
        assert_eq!(links.over(["tp"]), Some(link(50.0, 100.0)));
        assert_eq!(links.over(["fsdp", "tp"]), Some(link(50.0, 10.0)));
        assert_eq!(links.over(["fsdp", "dp"]), Some(link(20.0, 10.0)));
        assert_eq!(links.over(["dp"]), None);
        assert_eq!(links.over([]), None);
        let links = Links::all(link(1.0, 2.0)).with("tp", link(0.0, 4.0));
        assert_eq!(links.over(["tp"]), Some(link(0.0, 4.0)));
        assert_eq!(links.over(["dp"]), Some(link(1.0, 2.0)));
    }

    #[test]
    fn links_of_nodes_stand_between_those_of_axes_and_that_of_all() {
        let (fast, slow, own) = (link(2.0, 400.0), link(20.0, 40.0), link(5.0, 100.0));
        let links = Links::by_node(fast, slow).with("tp", own);
        assert!(!links.is_empty());
        assert_eq!(links.on(["fsdp"], false), Some(fast));
        assert_eq!(links.on(["fsdp"], true), Some(slow));
        assert_eq!(links.on(["tp"], true), Some(own));
        assert_eq!(links.on(["tp", "fsdp"], true), Some(link(20.0, 40.0)));
        let between: Links = "latency_us=1,gbps=1;between:latency_us=20,gbps=40"
            .parse()
            .unwrap();
        assert_eq!(between.on(["fsdp"], false), Some(link(1.0, 1.0)));
        assert_eq!(between.on(["fsdp"], true), Some(slow));
    }

    #[test]
    fn text_comes_back_as_it_was() {
        for text in [
            "latency_us=20,gbps=10",
            "latency_us=0,gbps=0.25",
            "latency_us=1.5,gbps=400",
            "tp:latency_us=5,gbps=100;fsdp:latency_us=20,gbps=10",
            "latency_us=20,gbps=10;tp:latency_us=5,gbps=100",
            "inside:latency_us=2,gbps=400;between:latency_us=20,gbps=40",
            "between:latency_us=20,gbps=40;tp:latency_us=5,gbps=100",
        ] {
            let links: Links = text.parse().unwrap();
            assert_eq!(links.to_string(), text);
        }
        let spaced: Links = " gbps = 10 , latency_us = 20 ".parse().unwrap();
        assert_eq!(spaced, Links::all(link(20.0, 10.0)));
    }

    #[test]
    fn errors_say_what_is_wrong_and_what_is_right() {
        let error = |text: &str| text.parse::<Links>().unwrap_err().to_string();
        for (text, problem) in [
            ("", "`` is not of the form key=number"),
            ("latency_us=20", "gbps is missing"),
            ("gbps=20", "latency_us is missing"),
            ("latency_us=20,mbps=1", "there is no `mbps`"),
            ("latency_us=x,gbps=1", "`x` of latency_us is not a number"),
            ("latency_us=-1,gbps=1", "latency_us is -1"),
            ("latency_us=NaN,gbps=1", "latency_us is NaN"),
            ("latency_us=1,gbps=0", "gbps is 0"),
            ("latency_us=1,gbps=inf", "gbps is inf"),
            (
                "latency_us=1,latency_us=2,gbps=1",
                "latency_us is given twice",
            ),
            (
                "latency_us=1,gbps=1;latency_us=1,gbps=1",
                "two links are for all axes",
            ),
            (
                "tp:latency_us=1,gbps=1;tp:latency_us=1,gbps=1",
                "axis `tp` has two links",
            ),
            (
                "inside:latency_us=1,gbps=1;inside:latency_us=1,gbps=1",
                "there are two links `inside`",
            ),
        ] {
            let error = error(text);
            assert!(error.contains(problem), "{error}");
            assert!(error.contains(&format!("`{text}`")), "{error}");
            assert!(error.contains("write latency_us=20,gbps=10"), "{error}");
        }
        let mesh: MeshShape = "fsdp=2,tp=2".parse().unwrap();
        let links = Links::default().with("dp", link(1.0, 1.0));
        let error = links.check(&mesh).unwrap_err().to_string();
        assert!(
            error.contains("`dp`") && error.contains("fsdp, tp"),
            "{error}"
        );
    }

    #[test]
    fn no_axis_has_a_name_that_stands_for_nodes() {
        let mesh = |text: &str| text.parse::<MeshShape>().unwrap();
        let by_node = Links::by_node(link(2.0, 400.0), link(20.0, 40.0));
        let plain = mesh("fsdp=2");
        for name in BY_NODE {
            let named = mesh(&format!("fsdp=2,{name}:model=2"));
            let own = Links::default().with(name, link(1.0, 1.0));
            for (links, mesh) in [(&own, &named), (&by_node, &named), (&own, &plain)] {
                let error = links.check(mesh).unwrap_err();
                let name = name.to_owned();
                assert_eq!(error, MeshError::LinkName { name });
            }
            Links::default().check(&named).unwrap();
        }
        by_node.check(&plain).unwrap();
        let error = by_node
            .check(&mesh("between:model=2"))
            .unwrap_err()
            .to_string();
        let expected = "a mesh with links cannot have an axis `between`, which in links stands for groups between \
            nodes: give the axis another name";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_group_spans_the_axes_in_which_it_differs() {
        let mesh: MeshShape = "dp=2,fsdp=2,tp=2".parse().unwrap();
        let names = |ranks: &[u32]| {
            let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
            mesh.axes_text(&ranks)
        };
        assert_eq!(names(&[0, 1]), "tp");
        assert_eq!(names(&[4, 6]), "fsdp");
        assert_eq!(names(&[0, 1, 2, 3]), "fsdp,tp");
        assert_eq!(names(&[3, 7]), "dp");
        assert_eq!(names(&[5]), "");
    }
}
