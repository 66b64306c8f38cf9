//! A modelled network between the ranks: when each transfer starts and ends.
//!
//! Ranks that are threads share memory, which says nothing about a cluster. With [`Network`] in the options of the hub,
//! a collective
//!
//! - starts on the wire when its last member has launched it and the link of each member along each of its axes is
//!   free,
//! - keeps those links for as long as the [formula](burn_dist_mesh::link) says, whoever waits for it,
//! - and is not waited for successfully before it has ended.
//!
//! Values are not touched. A link is serial per rank and axis, inside nodes and between them apart, whatever the lane:
//! transfers of one axis stand in line in the order in which their last members arrived. A group over several axes
//! takes its time from the slowest and keeps the links of all of them. Groups that span no axis with a link take no
//! time. A shift goes over the axes along which some member differs from the one that it sends to. Those are all of its
//! group's, unless `by` and the size of the group have a common divisor: by 2 along all of `dp=2,tp=2`, only dp.

use crate::group::Group;
use crate::sync::lock;
use burn_dist_mesh::collective::member_after;
use burn_dist_mesh::{AxisIndex, Link, Links, MeshShape, Rank, Topology};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A network to model: the mesh that the ranks of a hub form, and the links of its axes.
#[derive(Clone, Debug)]
pub struct Network {
    /// The mesh; its ranks are those of the hub.
    pub mesh: MeshShape,
    /// Its nodes.
    pub topology: Topology,
    /// Its links.
    pub links: Links,
}

/// Until when each link is taken, in nanoseconds since some start.
#[derive(Debug)]
struct Timetable {
    num_axes: usize,
    /// By rank, then axis.
    free_at: Vec<u64>,
}

impl Timetable {
    fn new(num_ranks: usize, num_axes: usize) -> Self {
        Self {
            num_axes,
            free_at: vec![0; num_ranks * num_axes],
        }
    }

    /// Takes the links of `members` along `axes` for `duration`, as soon as all are free and not before `now`; returns
    /// when it starts and ends.
    fn book(&mut self, members: &[Rank], axes: &[usize], now: u64, duration: u64) -> (u64, u64) {
        let num_axes = self.num_axes;
        let links = || {
            members
                .iter()
                .flat_map(|rank| axes.iter().map(|axis| rank.0 as usize * num_axes + axis))
        };
        let start = links().map(|link| self.free_at[link]).fold(now, u64::max);
        let end = start.saturating_add(duration);
        for link in links() {
            self.free_at[link] = end;
        }
        (start, end)
    }
}

/// The links of a group's transfers.
#[derive(Clone, Debug)]
pub(super) struct Route {
    axes: Vec<usize>,
    link: Link,
}

#[derive(Debug)]
pub(super) struct Wire {
    network: Network,
    epoch: Instant,
    timetable: Mutex<Timetable>,
}

impl Wire {
    pub(super) fn new(network: Network, num_ranks: usize) -> Self {
        // Inside nodes and between them.
        let num_axes = 2 * network.mesh.axes().len();
        Self {
            network,
            epoch: Instant::now(),
            timetable: Mutex::new(Timetable::new(num_ranks, num_axes)),
        }
    }

    /// Returns what transfers of `group` go over; `None` if they take no time.
    pub(super) fn route(&self, group: &Group) -> Option<Route> {
        let Network { mesh, topology, .. } = &self.network;
        let ranks = group.ranks();
        self.route_over(mesh.axes_of(ranks), topology.spans(ranks))
    }

    /// Returns what a shift by so many places along `group` goes over; `None` if it takes no time.
    pub(super) fn route_of_shift(&self, group: &Group, by: isize) -> Option<Route> {
        let Network { mesh, topology, .. } = &self.network;
        let ranks = group.ranks();
        let pair = |(from, &rank)| [rank, ranks[member_after(from, by, ranks.len())]];
        let pairs = || ranks.iter().enumerate().map(pair);
        let mut axes: Vec<_> = pairs().flat_map(|pair| mesh.axes_of(&pair)).collect();
        axes.sort_unstable();
        axes.dedup();
        self.route_over(axes, pairs().any(|pair| topology.spans(&pair)))
    }

    /// Returns the slowest link of these axes, inside nodes or between them.
    fn route_over(&self, axes: Vec<AxisIndex>, spans: bool) -> Option<Route> {
        let Network { mesh, links, .. } = &self.network;
        let link = links.on(axes.iter().map(|&axis| mesh.name(axis)), spans)?;
        let place = |axis: &AxisIndex| 2 * usize::from(axis.0) + usize::from(spans);
        let axes = axes.iter().map(place).collect();
        Some(Route { axes, link })
    }

    /// Puts a transfer that all members have launched by `now` on the wire; returns when it starts and ends.
    pub(super) fn book(
        &self,
        route: &Route,
        group: &Group,
        (rounds, bytes): (u64, u64),
        now: Instant,
    ) -> (Instant, Instant) {
        let duration = route.link.transfer_ns(rounds, bytes);
        let since = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        let (start, end) = lock(&self.timetable).book(group.ranks(), &route.axes, since, duration);
        let at = |ns| self.epoch + Duration::from_nanos(ns);
        (at(start), at(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_dist_mesh::Nodes;

    #[test]
    fn links_are_serial_per_rank_and_axis() {
        let mut table = Timetable::new(4, 2);
        let ranks = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
        let (low, high, all) = (ranks(&[0, 1]), ranks(&[2, 3]), ranks(&[0, 1, 2, 3]));
        assert_eq!(table.book(&low, &[1], 10, 100), (10, 110));
        // Launched while the first is open.
        assert_eq!(table.book(&low, &[1], 20, 100), (110, 210));
        // Other ranks, and the same ranks along another axis, do not wait.
        assert_eq!(table.book(&high, &[1], 20, 5), (20, 25));
        assert_eq!(table.book(&ranks(&[0, 2]), &[0], 20, 30), (20, 50));
        // Both axes of all: after the last of them; and everyone after it.
        assert_eq!(table.book(&all, &[0, 1], 60, 1), (210, 211));
        assert_eq!(table.book(&high, &[1], 60, 0), (211, 211));
        assert_eq!(table.book(&high, &[1], 300, 7), (300, 307));
    }

    #[test]
    fn a_group_goes_over_the_slowest_of_its_axes() {
        let wire = Wire::new(
            Network {
                mesh: "dp=2,fsdp=2,tp=2".parse().unwrap(),
                topology: Topology::single(8),
                links: "fsdp:latency_us=20,gbps=10;tp:latency_us=50,gbps=100"
                    .parse()
                    .unwrap(),
            },
            8,
        );
        let route = |ranks: &[u32]| {
            let group = Group::new(ranks.iter().copied().map(Rank).collect()).unwrap();
            wire.route(&group)
                .map(|route| (route.axes, route.link.to_string()))
        };
        let text = |text: &str| text.to_string();
        assert_eq!(
            route(&[0, 1]),
            Some((vec![4], text("latency_us=50,gbps=100")))
        );
        assert_eq!(
            route(&[0, 1, 2, 3]),
            Some((vec![2, 4], text("latency_us=50,gbps=10")))
        );
        assert_eq!(route(&[0, 4]), None);
        assert_eq!(route(&[3]), None);
    }

    #[test]
    fn a_shift_goes_over_the_axes_between_its_pairs() {
        let wire = Wire::new(
            Network {
                mesh: "dp=2,fsdp=2,tp=2".parse().unwrap(),
                topology: "4".parse::<Nodes>().unwrap().topology(8, &[]).unwrap(),
                links: "fsdp:latency_us=20,gbps=10;tp:latency_us=50,gbps=100"
                    .parse()
                    .unwrap(),
            },
            8,
        );
        let group = |ranks: &[u32]| Group::new(ranks.iter().copied().map(Rank).collect()).unwrap();
        let route = |ranks: &[u32], by| {
            wire.route_of_shift(&group(ranks), by)
                .map(|route| (route.axes, route.link.to_string()))
        };
        let of_group = |ranks: &[u32]| {
            wire.route(&group(ranks))
                .map(|route| (route.axes, route.link.to_string()))
        };
        let all: Vec<u32> = (0..8).collect();
        // Where every member is on the path of every block, those of the group.
        for by in [1, -1, 3, 5, -7, 9] {
            assert_eq!(route(&all, by), of_group(&all), "by {by}");
        }
        // To the other half of dp, which has no link.
        assert_eq!(route(&all, 4), None);
        // Pairs 0-2, 1-3, 4-6, 5-7 differ along fsdp, and pairs 2-4, 3-5, 6-0, 7-1 along dp too: from node to node.
        assert_eq!(
            route(&all, 2),
            Some((vec![1, 3], "latency_us=20,gbps=10".to_string()))
        );
        // The group is on two nodes, and its blocks stay on theirs: along tp inside a node.
        assert_eq!(
            route(&[0, 4, 1, 5], -2),
            Some((vec![4], "latency_us=50,gbps=100".to_string()))
        );
        assert!(of_group(&[0, 4, 1, 5]).is_some_and(|(axes, _)| axes == [1, 5]));
    }
}
