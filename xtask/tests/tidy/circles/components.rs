//! Strongly connected components: nodes that reach each other.

/// Returns the components of a graph whose node `i` has arrows to `targets[i]`, in one walk over all arrows.
///
/// # Source
/// Tarjan, Depth-first search and linear graph algorithms (1972), with the stack of calls as data.
pub(crate) fn components(targets: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut walk = Walk {
        number: vec![None; targets.len()],
        lowest: vec![0; targets.len()],
        open: vec![false; targets.len()],
        path: Vec::new(),
        next: 0,
    };
    let mut found = Vec::new();
    // Nodes on the way, each with how many of its arrows were followed.
    let mut calls: Vec<(usize, usize)> = Vec::new();
    for start in 0..targets.len() {
        if walk.number[start].is_none() {
            walk.enter(start);
            calls.push((start, 0));
        }
        while let Some((node, followed)) = calls.last_mut() {
            let node = *node;
            if let Some(&target) = targets[node].get(*followed) {
                *followed += 1;
                match walk.number[target] {
                    None => {
                        walk.enter(target);
                        calls.push((target, 0));
                    }
                    Some(number) if walk.open[target] => walk.lower(node, number),
                    Some(_) => {}
                }
            } else {
                calls.pop();
                if let Some((caller, _)) = calls.last() {
                    walk.lower(*caller, walk.lowest[node]);
                }
                if walk.number[node] == Some(walk.lowest[node]) {
                    found.push(walk.close(node));
                }
            }
        }
    }
    found
}

struct Walk {
    /// In which order nodes were entered.
    number: Vec<Option<usize>>,
    /// The smallest number of an open node that is known to be reached.
    lowest: Vec<usize>,
    /// Whether the node waits on `path` for its component.
    open: Vec<bool>,
    path: Vec<usize>,
    next: usize,
}

impl Walk {
    fn enter(&mut self, node: usize) {
        self.number[node] = Some(self.next);
        self.lowest[node] = self.next;
        self.next += 1;
        self.open[node] = true;
        self.path.push(node);
    }

    fn lower(&mut self, node: usize, number: usize) {
        self.lowest[node] = self.lowest[node].min(number);
    }

    /// Takes the component whose first node is `node` off the path.
    fn close(&mut self, node: usize) -> Vec<usize> {
        let at = self.path.iter().rposition(|other| *other == node);
        let component = self
            .path
            .split_off(at.expect("an open node is on the path"));
        component.iter().for_each(|node| self.open[*node] = false);
        component
    }
}

#[test]
fn components_are_found() {
    let mut found = components(&[vec![1], vec![2], vec![0, 3], vec![4], vec![3, 4], vec![0]]);
    found.iter_mut().for_each(|component| component.sort());
    found.sort();
    assert_eq!(found, [vec![0, 1, 2], vec![3, 4], vec![5]]);
}
