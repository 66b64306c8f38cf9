//! From names to the files that define what they stand for.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::scopes::{Module, Tree};

/// Pairs of a file and another that defines what the first uses, each with one name of it.
pub(crate) type Arrows = BTreeMap<(usize, usize), String>;

/// Returns the arrows between `files`, numbered in their order, of the crate `name`.
pub(crate) fn arrows(name: &str, files: &BTreeMap<String, String>) -> Arrows {
    let tree = Tree::of(files);
    let mut names = Names {
        tree: &tree,
        name,
        known: HashMap::new(),
        pending: HashSet::new(),
    };
    let mut arrows = Arrows::new();
    for (at, module) in tree.modules.iter().enumerate() {
        let Some(from) = module.file else { continue };
        let mut used = |target: Option<Target>, what: &dyn Fn() -> String| {
            if let Some(Target::File(to)) = target
                && from != to
            {
                arrows.entry((from, to)).or_insert_with(what);
            }
        };
        for import in &module.imports {
            if !import.handed_on || module.words.contains(&import.name) {
                let target = names.resolve(at, &import.path, Last::Item);
                used(target, &|| import.path.join("::"));
            }
        }
        for path in &module.mentions {
            let target = names.resolve(at, path, Last::Item);
            used(target, &|| path.join("::"));
        }
        for glob in &module.globs {
            let Some(Target::Module(whole)) = names.resolve(at, glob, Last::Module) else {
                continue;
            };
            for word in module.words.iter().filter(|word| !is_named(module, word)) {
                let target = names.find(whole, word, Last::Item);
                used(target, &|| format!("{}::{word}", glob.join("::")));
            }
        }
    }
    arrows
}

/// Whether `module` has the name without its globs.
fn is_named(module: &Module, word: &str) -> bool {
    module.items.contains(word)
        || module.imported.contains_key(word)
        || module.children.contains_key(word)
}

#[derive(Clone, Copy)]
enum Target {
    /// Something that this file defines.
    File(usize),
    Module(usize),
    /// Something of another crate.
    Outside,
}

/// What the last name of a path is first looked for as; a module and a function may share a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Last {
    Item,
    Module,
}

struct Names<'a> {
    tree: &'a Tree,
    name: &'a str,
    /// Each name of each module is looked for once.
    known: HashMap<(usize, &'a str, Last), Option<Target>>,
    /// What is being looked for: modules may import from each other.
    pending: HashSet<(usize, &'a str, Last)>,
}

impl<'a> Names<'a> {
    /// Follows `path` from `module`. A name that a module should have and has not is of a macro's making, there.
    fn resolve(&mut self, module: usize, path: &'a [String], last: Last) -> Option<Target> {
        let mut at = module;
        let mut relative = true;
        for (index, name) in path.iter().enumerate() {
            at = match name.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => self.tree.modules[at].parent,
                other if index == 0 && other == self.name => 0,
                name => {
                    let last = if index + 1 == path.len() {
                        last
                    } else {
                        Last::Module
                    };
                    match self.find(at, name, last) {
                        Some(Target::Module(module)) => module,
                        Some(found) => return Some(found),
                        None if relative => return Some(Target::Outside),
                        None => return self.tree.modules[at].file.map(Target::File),
                    }
                }
            };
            relative = false;
        }
        Some(Target::Module(at))
    }

    /// Looks for what `name` stands for in `module`.
    fn find(&mut self, module: usize, name: &'a str, last: Last) -> Option<Target> {
        let key = (module, name, last);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        if !self.pending.insert(key) {
            return None;
        }
        let found = self.look(module, name, last);
        self.pending.remove(&key);
        self.known.insert(key, found);
        found
    }

    fn look(&mut self, at: usize, name: &'a str, last: Last) -> Option<Target> {
        let tree = self.tree;
        let module = &tree.modules[at];
        let child = module.children.get(name).copied().map(Target::Module);
        if child.is_some() && last == Last::Module {
            return child;
        }
        if module.items.contains(name) {
            return module.file.map(Target::File);
        }
        for import in module.imported.get(name).into_iter().flatten() {
            let path = &module.imports[*import].path;
            // An import of itself brings a macro into the scope of paths.
            if path.len() > 1 || path[0] != name {
                return self.resolve(at, path, last);
            }
        }
        if child.is_some() {
            return child;
        }
        for glob in &module.globs {
            if let Some(Target::Module(whole)) = self.resolve(at, glob, Last::Module)
                && let Some(found) = self.find(whole, name, last)
            {
                return Some(found);
            }
        }
        None
    }
}
