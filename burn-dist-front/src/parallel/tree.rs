//! The tree of a module, from one walk over it: its modules and its float parameters.

use burn_dist_plan::pattern::{Pattern, PatternSegment};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// The container of what is attached to a parameter, as Burn names it.
pub const ATTACHED: &str = "Reparameterization";

/// The path of the module that a walk is in: one segment per `enter_module`.
#[derive(Default)]
pub struct ModulePath {
    segments: Vec<Segment>,
}

/// One step of a path.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Field, variant, or index.
    pub(super) name: String,
    /// The container of the step, as Burn names it: `Struct:Linear`, `Enum:Proj`, `Vec`, `Array`, `Tuple`.
    container: String,
}

impl Segment {
    /// The type whose field this is, if it is a field.
    pub(super) fn struct_name(&self) -> Option<&str> {
        self.container.strip_prefix("Struct:")
    }

    /// Returns whether this is an element of a list or a tuple.
    pub(super) fn is_element(&self) -> bool {
        matches!(self.container.as_str(), "Vec" | "Array" | "Tuple")
    }

    /// Returns whether the index says nothing about the kind of element, so that `*` may stand for it in a listing.
    pub(super) fn is_interchangeable(&self) -> bool {
        matches!(self.container.as_str(), "Vec" | "Array")
    }
}

impl ModulePath {
    /// Enters a module: a field, a variant or an index, and its container as Burn names it.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.segments.push(Segment {
            name: name.into(),
            container: container.into(),
        });
    }

    /// Leaves the module that was entered last.
    pub fn exit(&mut self) {
        self.segments.pop();
    }

    /// Returns whether it is inside of what is attached to a parameter, such as LoRA's factors.
    pub fn is_attached(&self) -> bool {
        let mut containers = self.segments.iter().map(|s| s.container.as_str());
        containers.any(|container| container == ATTACHED)
    }

    /// The dotted path.
    pub fn path(&self) -> String {
        let names: Vec<&str> = self.segments.iter().map(|s| s.name.as_str()).collect();
        names.join(".")
    }
}

/// A float parameter, before anything is decided about it.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// One segment per step from the root.
    pub(super) segments: Vec<Segment>,
    /// The names of `segments`.
    pub(super) names: Vec<String>,
    /// Its global shape. For a parameter still to be initialised, the shape Burn states before its mappers run, which
    /// transposes the weight of a `LinearLayout::Col`.
    pub(super) shape: Vec<usize>,
    /// Set if it is a factor of an adapter.
    pub(super) factor: Option<Factor>,
}

/// A factor of an adapter: a parameter from which, and from a frozen base, the value of another one is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    /// The base, by number.
    pub(super) base: usize,
    /// The dim that it has in common with the base, at the same place.
    pub(super) dim: Option<usize>,
}

impl Parameter {
    /// The dotted path.
    pub(super) fn path(&self) -> String {
        self.names.join(".")
    }

    /// The dotted path of the first `len` segments.
    pub(super) fn prefix(&self, len: usize) -> String {
        self.names[..len].join(".")
    }
}

/// Returns the parameter that decides for another one: see [`ModuleTree::decisive`].
pub(super) fn decisive(parameters: &[Parameter], parameter: usize, len: usize) -> &Parameter {
    let base = parameters[parameter]
        .factor
        .map(|factor| &parameters[factor.base]);
    base.filter(|base| len <= base.names.len())
        .unwrap_or(&parameters[parameter])
}

/// A module, a list or a parameter in a [`ModuleTree`], by number: in the order of the walk, the whole module first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node(usize);

/// The modules and float parameters of a module.
#[derive(Debug)]
pub struct ModuleTree {
    /// In the order of the walk.
    pub(super) parameters: Vec<Parameter>,
    nodes: Vec<NodeContent>,
}

#[derive(Debug)]
struct NodeContent {
    /// The names that lead to it.
    names: Vec<String>,
    /// Nodes right below it; a module written by hand may enter one name several times.
    children: HashMap<String, Vec<Node>>,
    /// The node after all those in it.
    end: usize,
    /// The parameters in it.
    parameters: Range<usize>,
}

impl ModuleTree {
    /// Returns the number of segments that lead to a node.
    pub(super) fn depth(&self, node: Node) -> usize {
        self.nodes[node.0].names.len()
    }

    /// Returns the dotted path of a node.
    pub(super) fn path(&self, node: Node) -> String {
        self.nodes[node.0].names.join(".")
    }

    /// Returns the float parameters in a node, by number.
    pub(super) fn parameters_in(&self, node: Node) -> Range<usize> {
        self.nodes[node.0].parameters.clone()
    }

    /// Returns whether a node is the base of an adapter, itself.
    pub(super) fn is_adapted(&self, node: Node) -> bool {
        let parameters = self.parameters_in(node);
        let first = self.parameters.get(parameters.start);
        parameters.len() > 1 && first.is_some_and(|first| first.names.len() == self.depth(node))
    }

    /// Returns the parameter whose place in a module says how a parameter is split by an entry that names `len` of its
    /// segments: the base, of a factor.
    pub(super) fn decisive(&self, parameter: usize, len: usize) -> &Parameter {
        decisive(&self.parameters, parameter, len)
    }

    /// Returns the number of elements of the list at a path.
    pub(super) fn num_elements(&self, path: &[String]) -> usize {
        let lists = self.at(path).into_iter();
        let names = lists.flat_map(|node| self.nodes[node.0].children.keys());
        let last = names.filter_map(|name| name.parse::<usize>().ok()).max();
        last.map_or(0, |last| last + 1)
    }

    /// Returns the nodes at a path.
    pub(super) fn at(&self, path: &[String]) -> Vec<Node> {
        let mut nodes = vec![Node(0)];
        for name in path {
            let below = nodes.iter().flat_map(|node| self.children(*node, name));
            nodes = below.collect();
        }
        nodes
    }

    /// Returns the nodes that a pattern names.
    pub(super) fn named(&self, pattern: &Pattern) -> Vec<Node> {
        let segments = pattern.segments();
        // Nodes with the number of segments that lead to them; each pair is followed once.
        let mut reached = BTreeSet::from([(0, Node(0))]);
        let mut open = vec![(0, Node(0))];
        while let Some((len, node)) = open.pop() {
            let next: Vec<(usize, Node)> = match segments.get(len) {
                None => continue,
                Some(PatternSegment::Any) => {
                    let inside = (node.0..self.nodes[node.0].end).map(Node);
                    inside.map(|node| (len + 1, node)).collect()
                }
                Some(PatternSegment::Name(name)) => {
                    let below = self.children(node, name).into_iter();
                    below.map(|node| (len + 1, node)).collect()
                }
                Some(glob @ PatternSegment::Glob(_)) => {
                    let below = self.nodes[node.0].children.iter();
                    let named = below.filter(|(name, _)| glob.matches(name));
                    named
                        .flat_map(|(_, nodes)| nodes.iter().map(|node| (len + 1, *node)))
                        .collect()
                }
            };
            open.extend(next.into_iter().filter(|pair| reached.insert(*pair)));
        }
        let named = reached.range((segments.len(), Node(0))..);
        named.map(|(_, node)| *node).collect()
    }

    fn children(&self, node: Node, name: &str) -> Vec<Node> {
        let children = self.nodes[node.0].children.get(name);
        children.cloned().unwrap_or_default()
    }
}

/// Builds the tree of a module while it is walked over.
pub struct TreeBuilder {
    path: ModulePath,
    /// The nodes from the root to where the walk is.
    open: Vec<Node>,
    tree: ModuleTree,
    /// The base of the adapter that the walk is in, and how many modules were open before.
    adapted: Option<(usize, usize)>,
}

impl Default for TreeBuilder {
    fn default() -> Self {
        let root = NodeContent {
            names: Vec::new(),
            children: HashMap::new(),
            end: 0,
            parameters: 0..0,
        };
        Self {
            path: ModulePath::default(),
            open: vec![Node(0)],
            tree: ModuleTree {
                parameters: Vec::new(),
                nodes: vec![root],
            },
            adapted: None,
        }
    }
}

impl TreeBuilder {
    /// Notes that the walk enters a module: a field, a variant or an index, and its container as Burn names it.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
        let node = Node(self.tree.nodes.len());
        let num_parameters = self.tree.parameters.len();
        let mut names = Vec::new();
        if let Some(parent) = self.open.last() {
            let parent = &mut self.tree.nodes[parent.0];
            names.extend(parent.names.iter().cloned());
            parent.children.entry(name.into()).or_default().push(node);
        }
        names.push(name.into());
        self.tree.nodes.push(NodeContent {
            names,
            children: HashMap::new(),
            end: 0,
            parameters: num_parameters..num_parameters,
        });
        self.open.push(node);
    }

    /// Notes that the walk enters the adapter of the parameter that was noted last; the module that it enters next is
    /// that one.
    pub fn adapter(&mut self) {
        let base = self.tree.parameters.len().checked_sub(1);
        self.adapted = base.map(|base| (base, self.open.len()));
    }

    /// Notes that the walk leaves the module that it entered last.
    pub fn exit(&mut self) {
        self.path.exit();
        if let Some(node) = self.open.pop() {
            self.close(node);
        }
        // The adapter itself was left.
        self.adapted = self.adapted.filter(|(_, open)| self.open.len() > *open);
    }

    /// Notes a float parameter where the walk is, with its global shape: of one that is still to be initialised, the
    /// shape that Burn states before its mappers run.
    pub fn parameter(&mut self, shape: &[usize]) {
        self.factor(shape, None);
    }

    /// Notes a float parameter of an adapter, as [`Self::parameter`] does, and the dim that it has in common with the
    /// base, at the same place.
    pub fn factor(&mut self, shape: &[usize], dim: Option<usize>) {
        let segments = self.path.segments.clone();
        self.tree.parameters.push(Parameter {
            names: segments.iter().map(|s| s.name.clone()).collect(),
            segments,
            shape: shape.to_vec(),
            factor: self.adapted.map(|(base, _)| Factor { base, dim }),
        });
    }

    /// Returns the tree of what was walked over.
    pub fn build(mut self) -> ModuleTree {
        self.close(Node(0));
        self.tree
    }

    /// Notes that the walk has left a node.
    fn close(&mut self, node: Node) {
        let (nodes, parameters) = (self.tree.nodes.len(), self.tree.parameters.len());
        let content = &mut self.tree.nodes[node.0];
        content.end = nodes;
        content.parameters.end = parameters;
    }
}
