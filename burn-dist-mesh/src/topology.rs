//! Which node (machine) each rank is on, and which links the axes of a mesh therefore use.
//!
//! Ranks of one node talk through its memory or its GPU links, those of two nodes through a network that is often ten
//! times slower. A [`Topology`] says which ranks share a node; it follows from the hosts of the processes, or is
//! declared ([`Nodes`]), also where there is no cluster: one process may stand for many.
//!
//! ```
//! use burn_dist_mesh::{MeshShape, Nodes, Split};
//!
//! let mesh: MeshShape = "fsdp=4,tp=2".parse()?;
//! let topology = Nodes::Each(4).topology(mesh.num_ranks(), &[])?;
//! assert_eq!(topology.to_string(), "2 nodes x 4 ranks");
//! // Two of the four members along fsdp share a node; both along tp do.
//! assert_eq!(topology.split(&mesh, mesh.axis("fsdp")?), Some(Split { nodes: 2, per_node: 2 }));
//! assert_eq!(topology.split(&mesh, mesh.axis("tp")?), Some(Split { nodes: 1, per_node: 2 }));
//! # Ok::<(), burn_dist_mesh::MeshError>(())
//! ```
//!
//! Not here: racks and switches, several networks per node.

use super::{Axis, AxisIndex, MeshError, MeshShape, Rank, TextError};
use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;

/// Up to so many whole nodes, messages write the size of each.
const SIZES_NAMED: usize = 8;

/// Where nodes end, as asked for.
///
/// The text `4` is four ranks on every node, `4+2` four on the first and two on the second. Law: parsing the text form
/// gives the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Nodes {
    /// Processes on one host form a node, and a process alone is on one.
    #[default]
    Hosts,
    /// So many ranks on each node, in rank order.
    Each(usize),
    /// So many ranks on the first node, on the second, and so on, in rank order.
    Sizes(Vec<usize>),
}

impl Nodes {
    /// Returns the nodes of `num_ranks` ranks. `hosts` are those of the processes, which share the ranks out evenly and
    /// in order; none is one process.
    ///
    /// # Errors
    /// [`MeshError::Nodes`] if the nodes do not hold exactly the ranks.
    pub fn topology(&self, num_ranks: usize, hosts: &[&str]) -> Result<Topology, MeshError> {
        let error = |hint: String| MeshError::Nodes {
            ranks: num_ranks,
            nodes: self.to_string(),
            hint,
        };
        match self {
            Self::Hosts => Ok(Topology::of_hosts(num_ranks, hosts)),
            Self::Each(0) => Err(error("a node holds at least 1 rank".to_owned())),
            Self::Each(each) if !num_ranks.is_multiple_of(*each) => {
                let (full, rest) = (num_ranks / each, num_ranks % each);
                let sizes = match full {
                    0..=SIZES_NAMED => {
                        let sizes = std::iter::repeat_n(*each, full).chain([rest]).collect();
                        Self::Sizes(sizes).to_string()
                    }
                    _ => format!("{each}+{each}+...+{rest}, with {full} times {each}"),
                };
                let meshes: Vec<String> = [full, full + 1]
                    .iter()
                    .filter(|nodes| **nodes > 0)
                    .map(|nodes| (nodes * each).to_string())
                    .collect();
                Err(error(format!(
                    "{num_ranks} is no multiple of {each}: the last node has {rest}; use a mesh of {} ranks, or, if \
                     that is meant, write the sizes one by one: {sizes}",
                    meshes.join(" or ")
                )))
            }
            Self::Each(each) => Ok(Topology::of_sizes(&vec![*each; num_ranks / each])),
            Self::Sizes(sizes) if sizes.contains(&0) => {
                Err(error("a node holds at least 1 rank".to_owned()))
            }
            Self::Sizes(sizes) => match sizes.iter().sum::<usize>() {
                sum if sum == num_ranks => Ok(Topology::of_sizes(sizes)),
                sum => Err(error(format!(
                    "they hold {sum}: give sizes that add up to {num_ranks}"
                ))),
            },
        }
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosts => f.write_str("hosts"),
            Self::Each(each) => write!(f, "{each}"),
            Self::Sizes(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                f.write_str(&sizes.join("+"))
            }
        }
    }
}

impl FromStr for Nodes {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let number = |part: &str| part.trim().parse().ok().filter(|size| *size > 0);
        let sizes: Option<Vec<usize>> = text.split('+').map(number).collect();
        match (sizes.as_deref(), text.trim()) {
            (Some([each]), _) => Ok(Self::Each(*each)),
            (Some(sizes), _) => Ok(Self::Sizes(sizes.to_vec())),
            (None, "hosts") => Ok(Self::Hosts),
            (None, _) => Err(TextError::new(
                text,
                "does not say how many ranks a node holds: write 4 for four on every node, 4+2 for four on the first \
                 and two on the second",
            )),
        }
    }
}

/// How a group lies on nodes: on `nodes` of them, with `per_node` members that follow each other on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Nodes that the group is on.
    pub nodes: usize,
    /// Members on each.
    pub per_node: usize,
}

impl Split {
    /// Returns whether the group is on several nodes, with several members on each: what a hierarchy needs.
    pub fn is_hierarchical(self) -> bool {
        self.nodes > 1 && self.per_node > 1
    }
}

/// The slowest links that an axis uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// None: its groups have one member.
    Nothing,
    /// Memory of one process.
    Process,
    /// Between processes of one node.
    Node,
    /// The network between nodes.
    Network,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "none",
            Self::Process => "inside a process",
            Self::Node => "inside a node, between processes",
            Self::Network => "between nodes",
        })
    }
}

/// The node of each rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// By rank; numbered in order of their first ranks.
    nodes: Arc<[u32]>,
}

impl Topology {
    /// Returns the topology of `num_ranks` ranks on one node.
    pub fn single(num_ranks: usize) -> Self {
        Self::of_sizes(&[num_ranks])
    }

    fn of_sizes(sizes: &[usize]) -> Self {
        let nodes = (0..).zip(sizes);
        let nodes = nodes.flat_map(|(node, size)| std::iter::repeat_n(node, *size));
        Self {
            nodes: nodes.collect(),
        }
    }

    fn of_hosts(num_ranks: usize, hosts: &[&str]) -> Self {
        let each = num_ranks.div_ceil(hosts.len().max(1)).max(1);
        let mut known: Vec<&str> = Vec::new();
        let node = |rank: usize| {
            let host = hosts.get(rank / each).copied().unwrap_or_default();
            let found = known.iter().position(|other| *other == host);
            let node = found.unwrap_or_else(|| {
                known.push(host);
                known.len() - 1
            });
            node as u32
        };
        Self {
            nodes: (0..num_ranks).map(node).collect(),
        }
    }

    /// Returns the number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.nodes.iter().max().map_or(0, |last| *last as usize + 1)
    }

    /// Returns the node of a rank.
    pub fn node(&self, rank: Rank) -> usize {
        self.nodes[rank.0 as usize] as usize
    }

    /// Returns the number of ranks on each node.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.num_nodes()];
        for &node in self.nodes.iter() {
            sizes[node as usize] += 1;
        }
        sizes
    }

    /// Returns whether `ranks` are on more than one node.
    pub fn spans(&self, ranks: &[Rank]) -> bool {
        let mut nodes = ranks.iter().map(|rank| self.node(*rank));
        let first = nodes.next();
        nodes.any(|node| Some(node) != first)
    }

    /// Returns how a group lies on nodes, if each holds equally many members and they follow each other.
    pub fn split_of(&self, group: &[Rank]) -> Option<Split> {
        let first = self.node(*group.first()?);
        let same = |rank: &&Rank| self.node(**rank) == first;
        let per_node = group.iter().take_while(same).count();
        let blocks = group.chunks(per_node);
        let mut seen: Vec<usize> = Vec::new();
        for block in blocks {
            let node = self.node(block[0]);
            if block.len() != per_node || self.spans(block) || seen.contains(&node) {
                return None;
            }
            seen.push(node);
        }
        Some(Split {
            nodes: seen.len(),
            per_node,
        })
    }

    /// Returns how the groups along `axes` lie on nodes, if all of them do alike: what may be decided for all ranks at
    /// once.
    pub fn split_over(&self, mesh: &MeshShape, axes: &[AxisIndex]) -> Option<Split> {
        let mut splits = mesh
            .groups(axes)
            .into_iter()
            .map(|group| self.split_of(&group));
        let first = splits.next()??;
        splits.all(|split| split == Some(first)).then_some(first)
    }

    /// Returns how the groups along one axis lie on nodes, if all of them do alike.
    pub fn split(&self, mesh: &MeshShape, axis: AxisIndex) -> Option<Split> {
        self.split_over(mesh, &[axis])
    }

    /// Returns the slowest links that groups along an axis use, where each process has `ranks_per_process` ranks.
    pub fn reach(&self, mesh: &MeshShape, axis: AxisIndex, ranks_per_process: usize) -> Reach {
        let process = |rank: &Rank| rank.0 as usize / ranks_per_process.max(1);
        let of_group = |group: Vec<Rank>| {
            if group.len() < 2 {
                Reach::Nothing
            } else if self.spans(&group) {
                Reach::Network
            } else if group.iter().any(|rank| process(rank) != process(&group[0])) {
                Reach::Node
            } else {
                Reach::Process
            }
        };
        let groups = mesh.groups(&[axis]).into_iter().map(of_group);
        groups.max().unwrap_or(Reach::Nothing)
    }

    /// Returns the names of the axes that a group spans, as [`MeshShape::axes_text`]; with ` inside` or ` between` if
    /// the group is only that part of them.
    pub fn axes_text(&self, mesh: &MeshShape, group: &[Rank]) -> String {
        let axes = mesh.axes_of(group);
        let names = mesh.axes_text(group);
        match (mesh.group_size(&axes) == group.len(), self.spans(group)) {
            (true, _) => names,
            (false, true) => names + " between",
            (false, false) => names + " inside",
        }
    }

    /// Returns a table of the axes: size, how groups lie on nodes, and the slowest links that they use.
    ///
    /// ```
    /// use burn_dist_mesh::{MeshShape, Nodes};
    /// let mesh: MeshShape = "fsdp=4,tp=2".parse()?;
    /// let topology = Nodes::Each(4).topology(8, &[])?;
    /// assert_eq!(topology.table(&mesh, 1), "\
    /// 2 nodes x 4 ranks
    /// axis  size  lies on      links
    /// fsdp     4  2 nodes x 2  between nodes
    /// tp       2  1 node x 2   inside a node, between processes
    /// ");
    /// # Ok::<(), burn_dist_mesh::MeshError>(())
    /// ```
    pub fn table(&self, mesh: &MeshShape, ranks_per_process: usize) -> String {
        let rows: Vec<[String; 4]> = mesh
            .axis_indices()
            .map(|axis| {
                let lies = match self.split(mesh, axis) {
                    Some(split) => split.to_string(),
                    None => "nodes, unevenly".to_owned(),
                };
                let reach = self.reach(mesh, axis, ranks_per_process);
                let size = mesh.size(axis).to_string();
                [mesh.name(axis).to_owned(), size, lies, reach.to_string()]
            })
            .collect();
        let heads = ["axis", "size", "lies on", "links"];
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].len());
            cells.chain([heads[column].len()]).max().unwrap_or(0)
        };
        let (name, size, lies) = (width(0), width(1), width(2));
        let mut out = format!("{self}\n");
        let heads = heads.map(str::to_owned);
        for [axis, count, on, links] in std::iter::once(&heads).chain(&rows) {
            writeln!(out, "{axis:name$}  {count:>size$}  {on:lies$}  {links}")
                .expect("writing to a string cannot fail");
        }
        out
    }

    /// Returns what to write instead, if an axis over which every layer communicates goes between nodes and would not
    /// in another order of the axes.
    pub fn advice(&self, mesh: &MeshShape) -> Option<String> {
        let better = mesh.by_locality();
        let between = |mesh: &MeshShape, name: &str| {
            let axis = mesh.axis(name).ok()?;
            Some(self.reach(mesh, axis, 1) == Reach::Network)
        };
        let chatty = |axis: &&Axis| axis.role.splits_sequences() || axis.role.splits_model();
        let axis = mesh.axes().iter().filter(chatty).find(|axis| {
            between(mesh, &axis.name) == Some(true) && between(&better, &axis.name) == Some(false)
        })?;
        Some(format!(
            "axis `{}` of the mesh {mesh} goes between nodes ({self}), and every layer communicates over it: write \
             {better} to keep it inside a node",
            axis.name
        ))
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.nodes == 1 { "" } else { "s" };
        write!(f, "{} node{s} x {}", self.nodes, self.per_node)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.sizes();
        match sizes.as_slice() {
            [size] => write!(f, "1 node x {size} rank{}", plural(*size)),
            [first, rest @ ..] if rest.iter().all(|size| size == first) => {
                write!(f, "{} nodes x {first} rank{}", sizes.len(), plural(*first))
            }
            _ => write!(f, "nodes of {} ranks", Nodes::Sizes(sizes)),
        }
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

impl MeshShape {
    /// Returns the mesh with its axes in the order of how much they communicate, least first: `pp`, data parallel
    /// (`dp`), sharded (`fsdp`), `ep`, context parallel (`cp`), then what splits the model: `tp` last. Ranks along the
    /// last axis are neighbours, so what communicates most is inside a node.
    ///
    /// ```
    /// use burn_dist_mesh::MeshShape;
    /// assert_eq!(MeshShape::parse("tp=2,dp=2,pp=2,fsdp=4")?.by_locality().to_string(), "pp=2,dp=2,fsdp=4,tp=2");
    /// # Ok::<(), burn_dist_mesh::MeshError>(())
    /// ```
    /// # Source
    /// Megatron-LM (arXiv:2104.04473, section 5.4.1, takeaway 1): tensor parallel inside a node, pipeline and data
    /// parallel between nodes.
    pub fn by_locality(&self) -> MeshShape {
        let place = |axis: &Axis| (axis.role as usize, axis.name == "tp");
        let mut axes = self.axes().to_vec();
        axes.sort_by_key(place);
        Self::with_roles(axes).expect("the same axes in another order")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    fn mesh(text: &str) -> MeshShape {
        text.parse().unwrap()
    }

    fn nodes(text: &str, num_ranks: usize) -> Topology {
        let nodes: Nodes = text.parse().unwrap();
        assert_eq!(nodes.to_string(), text);
        nodes.topology(num_ranks, &[]).unwrap()
    }

    fn split(nodes: usize, per_node: usize) -> Option<Split> {
        Some(Split { nodes, per_node })
    }

    #[test]
    fn axes_lie_on_nodes() {
        let of = |axes: &str, nodes_text: &str, name: &str| {
            let mesh = mesh(axes);
            let axis = mesh.axis(name).unwrap();
            nodes(nodes_text, mesh.num_ranks()).split(&mesh, axis)
        };
        assert_eq!(of("fsdp=8", "4", "fsdp"), split(2, 4));
        assert_eq!(of("fsdp=8", "2", "fsdp"), split(4, 2));
        assert_eq!(of("dp=2,fsdp=4", "4", "dp"), split(2, 1));
        assert_eq!(of("dp=2,fsdp=4", "4", "fsdp"), split(1, 4));
        assert_eq!(of("dp=2,fsdp=4", "2", "fsdp"), split(2, 2));
        assert_eq!(of("fsdp=4,tp=2", "4", "fsdp"), split(2, 2));
        // Four and two members; 0 1 | 2 and 3 | 4 5.
        assert_eq!(of("fsdp=6", "4+2", "fsdp"), None);
        assert_eq!(of("dp=2,fsdp=3", "2", "fsdp"), None);
        // One group inside a node, the other over two: no rank may decide by its own group.
        assert_eq!(of("dp=2,fsdp=4", "4+2+2", "fsdp"), None);
    }

    #[test]
    fn groups_over_several_axes() {
        let fsdp_then_dp = |text: &str, each: &str| {
            let mesh = mesh(text);
            let axes = [mesh.axis("dp").unwrap(), mesh.axis("fsdp").unwrap()];
            nodes(each, mesh.num_ranks()).split_over(&mesh, &axes)
        };
        assert_eq!(fsdp_then_dp("dp=2,fsdp=4", "4"), split(2, 4));
        assert_eq!(fsdp_then_dp("dp=2,fsdp=4", "2"), split(4, 2));
        assert_eq!(fsdp_then_dp("dp=4,fsdp=2", "4"), split(2, 4));
        // In the group, node 0 comes back after node 1.
        assert_eq!(fsdp_then_dp("fsdp=4,dp=2", "4"), None);
    }

    #[test]
    fn hosts_of_processes_are_nodes() {
        let sizes = |ranks, hosts: &[&str]| {
            let topology = Nodes::Hosts.topology(ranks, hosts).unwrap();
            (topology.sizes(), topology.spans(&[Rank(0), Rank(1)]))
        };
        assert_eq!(sizes(8, &[]), (vec![8], false));
        assert_eq!(sizes(8, &["a", "a"]), (vec![8], false));
        assert_eq!(sizes(8, &["a", "b"]), (vec![4, 4], false));
        assert_eq!(sizes(6, &["a", "a", "b"]), (vec![4, 2], false));
        // Dealt out in turn.
        assert_eq!(sizes(4, &["a", "b", "a", "b"]), (vec![2, 2], true));
        let dealt = Nodes::Hosts.topology(4, &["a", "b", "a", "b"]).unwrap();
        assert_eq!(dealt.split(&mesh("fsdp=4"), AxisIndex(0)), None);
        assert_eq!(Topology::single(3).num_nodes(), 1);
    }

    #[test]
    fn tables() {
        let table = |axes: &str, each: &str, ranks_per_process| {
            let mesh = mesh(axes);
            nodes(each, mesh.num_ranks()).table(&mesh, ranks_per_process)
        };
        assert_snapshot!(table("fsdp=8", "4", 4), @r"
        2 nodes x 4 ranks
        axis  size  lies on      links
        fsdp     8  2 nodes x 4  between nodes
        ");
        assert_snapshot!(table("dp=2,fsdp=2,tp=2", "4", 2), @r"
        2 nodes x 4 ranks
        axis  size  lies on      links
        dp       2  2 nodes x 1  between nodes
        fsdp     2  1 node x 2   inside a node, between processes
        tp       2  1 node x 2   inside a process
        ");
        assert_snapshot!(table("fsdp=6,tp=1", "4+2", 6), @r"
        nodes of 4+2 ranks
        axis  size  lies on          links
        fsdp     6  nodes, unevenly  between nodes
        tp       1  1 node x 1       none
        ");
    }

    #[test]
    fn an_order_that_costs_is_named() {
        let advice = |axes: &str, each: &str| {
            let mesh = mesh(axes);
            nodes(each, mesh.num_ranks()).advice(&mesh)
        };
        assert_snapshot!(advice("tp=2,fsdp=4", "4").unwrap(), @"axis `tp` of the mesh tp=2,fsdp=4 goes between nodes \
            (2 nodes x 4 ranks), and every layer communicates over it: write fsdp=4,tp=2 to keep it inside a node");
        assert_eq!(advice("fsdp=4,tp=2", "4"), None);
        // It does not fit on a node in any order.
        assert_eq!(advice("tp=8,fsdp=2", "4"), None);
        assert_eq!(advice("tp=2,fsdp=4", "8"), None);
    }

    #[test]
    fn errors_say_what_fits() {
        let error = |nodes: Nodes, ranks| nodes.topology(ranks, &[]).unwrap_err().to_string();
        let errors = [
            error(Nodes::Each(4), 6),
            error(Nodes::Each(8), 510),
            error(Nodes::Each(8), 6),
            error(Nodes::Each(0), 6),
            error(Nodes::Sizes(vec![4, 4]), 6),
            error(Nodes::Sizes(vec![6, 0]), 6),
            "4+".parse::<Nodes>().unwrap_err().to_string(),
            "0".parse::<Nodes>().unwrap_err().to_string(),
        ];
        assert_snapshot!(errors.join("\n"), @r"
        nodes of 4 ranks do not hold the 6 of the mesh: 6 is no multiple of 4: the last node has 2; use a mesh of 4 or 8 ranks, or, if that is meant, write the sizes one by one: 4+2
        nodes of 8 ranks do not hold the 510 of the mesh: 510 is no multiple of 8: the last node has 6; use a mesh of 504 or 512 ranks, or, if that is meant, write the sizes one by one: 8+8+...+6, with 63 times 8
        nodes of 8 ranks do not hold the 6 of the mesh: 6 is no multiple of 8: the last node has 6; use a mesh of 8 ranks, or, if that is meant, write the sizes one by one: 6
        nodes of 0 ranks do not hold the 6 of the mesh: a node holds at least 1 rank
        nodes of 4+4 ranks do not hold the 6 of the mesh: they hold 8: give sizes that add up to 6
        nodes of 6+0 ranks do not hold the 6 of the mesh: a node holds at least 1 rank
        `4+` does not say how many ranks a node holds: write 4 for four on every node, 4+2 for four on the first and two on the second
        `0` does not say how many ranks a node holds: write 4 for four on every node, 4+2 for four on the first and two on the second
        ");
    }
}
