//! The items of modules, and the paths under which a crate shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::circles::scopes::tokens;
use crate::text::{is_for_tests, is_word, without_text};
use crate::workspace::{read, workspace};

/// A file, or a module in braces inside one.
#[derive(Default)]
struct Module {
    /// Path from the name of its crate.
    path: String,
    items: Vec<Item>,
    uses: Vec<Use>,
}

struct Item {
    name: String,
    seen: Seen,
    /// Whether documentation shows it.
    shown: bool,
    /// The module that it is, if it is one.
    module: Option<Module>,
}

/// One name of a `use`.
struct Use {
    path: Vec<String>,
    /// `*` for all names.
    name: String,
    seen: Seen,
    shown: bool,
}

/// Who may name an item.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// The module and what is in it.
    Inside,
    /// The crate, or a part of it.
    Crate,
    Everyone,
}

impl Seen {
    /// Returns whether a module may name what another, `at`, has.
    fn by(self, from: &str, at: &str) -> bool {
        let root = |path: &str| path.split("::").next().unwrap_or_default().to_owned();
        let is_inside = from == at || from.starts_with(&format!("{at}::"));
        match self {
            Self::Everyone => true,
            Self::Crate => root(from) == root(at),
            Self::Inside => is_inside,
        }
    }
}

/// The crates of the workspace that have been read, by name.
#[derive(Default)]
pub(super) struct Crates {
    modules: BTreeMap<String, Module>,
    /// True if items are those for Burn 0.21, and otherwise those for the current line.
    is_021: bool,
}

/// What a path stands for; a module and a function may share one.
enum Target<'a> {
    Module(&'a Module),
    /// The path of its definition.
    Item(String),
}

impl Crates {
    /// Reads the text of a crate that lies in no file.
    pub(super) fn of(name: &str, code: &str) -> Self {
        let code = without_text(code);
        let tokens = tokens(&code);
        let mut reader = Reader {
            tokens,
            at: 0,
            is_021: false,
        };
        let module = reader.module(Path::new(name), name);
        Self {
            modules: BTreeMap::from([(name.into(), module)]),
            is_021: false,
        }
    }

    /// Returns the public paths of a package's crate, each with what it stands for. Packages of two lines of Burn have
    /// crates of one name.
    pub(super) fn paths_of_package(package: &str) -> BTreeSet<(String, String)> {
        let name = package.trim_end_matches("-021").replace('-', "_");
        let mut crates = Self {
            is_021: package.ends_with("-021"),
            ..Self::default()
        };
        crates.read_folder(&name, &workspace().join(package).join("src"));
        crates.paths(&name)
    }

    /// Returns the public paths of a crate, each with what it stands for.
    pub(super) fn paths(&mut self, name: &str) -> BTreeSet<(String, String)> {
        self.read(name);
        let mut paths = BTreeSet::new();
        self.show(&self.modules[name], name, &mut paths);
        paths
    }

    /// Reads a crate and those that it names.
    fn read(&mut self, name: &str) {
        if self.modules.contains_key(name) {
            return;
        }
        let package = name.replace('_', "-");
        let folders =
            [package.clone(), package + "-021"].map(|name| workspace().join(name).join("src"));
        let folder = folders.iter().find(|folder| folder.join("lib.rs").exists());
        let Some(folder) = folder.filter(|_| name.starts_with("burn_dist")) else {
            return;
        };
        self.read_folder(name, folder);
    }

    /// Reads a crate whose sources lie in a folder, and those that it names.
    fn read_folder(&mut self, name: &str, folder: &Path) {
        let module = read_file(&folder.join("lib.rs"), folder, name, self.is_021);
        let named = module.crates();
        self.modules.insert(name.into(), module);
        for name in named {
            self.read(&name);
        }
    }

    /// Adds what `module` shows to `paths`, below `prefix`.
    fn show(&self, module: &Module, prefix: &str, paths: &mut BTreeSet<(String, String)>) {
        for item in module.items.iter().filter(|item| item.shown) {
            let path = format!("{prefix}::{}", item.name);
            let definition = format!("{}::{}", module.path, item.name);
            let is_new = paths.insert((path.clone(), definition));
            if let (Some(inside), true) = (&item.module, is_new) {
                self.show(inside, &path, paths);
            }
        }
        for import in module.uses.iter().filter(|import| import.shown) {
            for target in self.resolve(module, &import.path, &mut BTreeSet::new()) {
                let path = format!("{prefix}::{}", import.name);
                match (target, import.name.as_str()) {
                    (Target::Module(inside), "*") => self.show(inside, prefix, paths),
                    (Target::Module(inside), _) => {
                        if paths.insert((path.clone(), inside.path.clone())) {
                            self.show(inside, &path, paths);
                        }
                    }
                    (Target::Item(_), "*") => {}
                    (Target::Item(definition), _) => {
                        paths.insert((path, definition));
                    }
                }
            }
        }
    }

    /// Returns what a path in a module stands for; a path out of the workspace stands for itself.
    fn resolve<'a>(
        &'a self,
        module: &'a Module,
        path: &[String],
        open: &mut BTreeSet<String>,
    ) -> Vec<Target<'a>> {
        let (first, rest) = path.split_first().expect("a use has a path");
        let root = module.path.split("::").next().unwrap_or_default();
        let start = match first.as_str() {
            "crate" => Some(&self.modules[root]),
            "self" => Some(module),
            "super" => {
                let above = module
                    .path
                    .rsplit_once("::")
                    .map_or(root, |(above, _)| above);
                self.at(above)
            }
            _ => None,
        };
        if let Some(start) = start {
            return self.below(start, rest, &module.path, open);
        }
        // What leads nowhere here leaves its imports to be followed from the other crate.
        let inside = self.below(module, path, &module.path, &mut open.clone());
        let is_here = |name: &String| name == first;
        let here = module.items.iter().map(|item| &item.name);
        let is_known = here
            .chain(module.uses.iter().map(|import| &import.name))
            .any(is_here);
        match self.modules.get(first) {
            _ if !inside.is_empty() => inside,
            Some(other) => self.below(other, rest, &module.path, open),
            None if is_known => Vec::new(),
            None => vec![Target::Item(path.join("::"))],
        }
    }

    /// Returns the module at a path from the name of its crate.
    fn at(&self, path: &str) -> Option<&Module> {
        let mut names = path.split("::");
        let mut module = self.modules.get(names.next()?)?;
        for name in names {
            let item = module
                .items
                .iter()
                .find(|item| item.name == name && item.module.is_some());
            module = item?.module.as_ref()?;
        }
        Some(module)
    }

    /// Returns what a path below a module stands for, as far as the module `from` may name it.
    fn below<'a>(
        &'a self,
        module: &'a Module,
        path: &[String],
        from: &str,
        open: &mut BTreeSet<String>,
    ) -> Vec<Target<'a>> {
        let Some((first, rest)) = path.split_first() else {
            return vec![Target::Module(module)];
        };
        let mut found = Vec::new();
        let sees = |seen: Seen| seen.by(from, &module.path);
        let named = module.items.iter().filter(|item| item.name == *first);
        for item in named.filter(|item| sees(item.seen)) {
            match &item.module {
                Some(inside) => found.extend(self.below(inside, rest, from, open)),
                None if rest.is_empty() => {
                    found.push(Target::Item(format!("{}::{first}", module.path)));
                }
                // A type: its variants.
                None => {}
            }
        }
        // An import is followed once: `use a::a` does not lead to itself.
        let mut once = |import: &Use| {
            let (path, name) = (import.path.join("::"), &import.name);
            open.insert(format!("{} {path} {name}", module.path))
        };
        let (mut named, mut globs) = (Vec::new(), Vec::new());
        for import in module.uses.iter().filter(|import| sees(import.seen)) {
            if import.name == *first && once(import) {
                named.push(import);
            } else if import.name == "*" && once(import) {
                globs.push(import);
            }
        }
        for import in named {
            let longer = [&import.path[..], rest].concat();
            found.extend(self.resolve(module, &longer, open));
        }
        if found.is_empty() {
            for import in globs {
                let longer = [&import.path[..], path].concat();
                let elsewhere = self.resolve(module, &longer, open).into_iter();
                // Whatever is out of the workspace has every name.
                found.extend(elsewhere.filter(|target| match target {
                    Target::Module(_) => true,
                    Target::Item(definition) => *definition != longer.join("::"),
                }));
            }
        }
        found
    }
}

impl Module {
    /// Returns the crates that its imports and those of its modules name.
    fn crates(&self) -> BTreeSet<String> {
        let here = self.uses.iter().map(|import| import.path[0].clone());
        let inside = self.items.iter().filter_map(|item| item.module.as_ref());
        here.chain(inside.flat_map(Module::crates)).collect()
    }
}

/// Reads a file and the files of its modules, which lie in `folder`.
fn read_file(file: &Path, folder: &Path, path: &str, is_021: bool) -> Module {
    let code = without_text(&read(file));
    Reader {
        tokens: tokens(&code),
        at: 0,
        is_021,
    }
    .module(folder, path)
}

struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    is_021: bool,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// Reads items until the brace that closes the module, or to the end of the file.
    fn module(&mut self, folder: &Path, path: &str) -> Module {
        let mut module = Module {
            path: path.into(),
            ..Module::default()
        };
        loop {
            let of_other_line = match self.is_021 {
                true => "not(burn_021)",
                false => "burn_021",
            };
            // Items for tests, and those of the other line, are not there.
            let (mut hidden, mut for_tests) = (false, false);
            // A module whose file the other line has otherwise: that of 0.21 has the same name and a suffix.
            let mut suffix = "";
            while self.peek() == "#" {
                let attribute = self.attribute();
                hidden |= attribute == "doc(hidden)";
                if self.is_021 && attribute.starts_with("cfg_attr(burn_021,path=") {
                    suffix = "_021";
                }
                let condition = attribute
                    .strip_prefix("cfg(")
                    .and_then(|rest| rest.strip_suffix(')'));
                // Guides are pages of the documentation, and nothing that a program names.
                let for_readers = condition == Some("all(doc,not(doctest))");
                for_tests |= condition.is_some_and(is_for_tests)
                    || condition == Some(of_other_line)
                    || for_readers;
            }
            let mut seen = Seen::Inside;
            if self.peek() == "pub" {
                self.at += 1;
                seen = Seen::Everyone;
                if self.peek() == "(" {
                    seen = Seen::Crate;
                    self.skip_group();
                }
            }
            let shown = seen == Seen::Everyone && !hidden && !for_tests;
            while ["unsafe", "async", "extern", "\""].contains(&self.peek()) {
                self.at += 1;
            }
            match self.next() {
                "" | "}" => return module,
                "use" => {
                    let mut uses = Vec::new();
                    self.import(&[], seen, shown, &mut uses);
                    module.uses.extend(uses.into_iter().filter(|_| !for_tests));
                }
                "mod" => {
                    let name = self.next();
                    let path = format!("{path}::{name}");
                    let inside = match self.next() {
                        "{" => Some(self.module(&folder.join(name), &path)),
                        _ if for_tests => None,
                        _ => {
                            let file = format!("{name}{suffix}");
                            Some(read_module(folder, &file, &path, self.is_021))
                        }
                    };
                    if let (Some(inside), false) = (inside, for_tests) {
                        module.items.push(Item {
                            name: name.into(),
                            seen,
                            shown,
                            module: Some(inside),
                        });
                    }
                }
                "const" if self.peek() == "fn" => {
                    self.at += 1;
                    self.item(seen, shown, &mut module);
                }
                "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static" => {
                    self.item(seen, shown, &mut module);
                }
                ";" => {}
                _ => self.skip_item(),
            }
        }
    }

    /// Reads the name of an item and goes past the item.
    fn item(&mut self, seen: Seen, shown: bool, module: &mut Module) {
        let name = self.next();
        if name != "_" && name.starts_with(is_word) {
            module.items.push(Item {
                name: name.into(),
                seen,
                shown,
                module: None,
            });
        }
        self.skip_item();
    }

    /// Goes past an attribute and returns it without blanks.
    fn attribute(&mut self) -> String {
        self.at += 1;
        if self.peek() == "!" {
            self.at += 1;
        }
        let start = self.at + 1;
        self.skip_group();
        self.tokens[start.min(self.at)..self.at.saturating_sub(1)].concat()
    }

    /// Goes past what is in brackets, these included.
    fn skip_group(&mut self) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.next() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Goes past the rest of an item: to its semicolon, or its braces.
    fn skip_item(&mut self) {
        while self.at < self.tokens.len() {
            match self.peek() {
                ";" => {
                    self.at += 1;
                    return;
                }
                "{" => return self.skip_group(),
                "(" | "[" => self.skip_group(),
                "}" => return,
                _ => self.at += 1,
            }
        }
    }

    /// Reads one tree of a `use` below `prefix`, and the semicolon after it.
    fn import(&mut self, prefix: &[String], seen: Seen, shown: bool, uses: &mut Vec<Use>) {
        let mut path = prefix.to_vec();
        loop {
            match self.peek() {
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.peek()) {
                        self.import(&path, seen, shown, uses);
                        if self.peek() == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                "*" => {
                    self.at += 1;
                    uses.push(Use {
                        path,
                        name: "*".into(),
                        seen,
                        shown,
                    });
                    break;
                }
                "," | ";" | "}" | "" | "as" => {
                    let mut name = path.last().cloned().unwrap_or_default();
                    if self.peek() == "as" {
                        self.at += 1;
                        name = self.next().into();
                    }
                    uses.push(Use {
                        path,
                        name,
                        seen,
                        shown,
                    });
                    break;
                }
                "self" if !path.is_empty() => self.at += 1,
                word => {
                    if word.starts_with(is_word) {
                        path.push(word.into());
                    }
                    self.at += 1;
                }
            }
        }
        if prefix.is_empty() && self.peek() == ";" {
            self.at += 1;
        }
    }
}

/// Reads the file of a module that lies in `folder`.
fn read_module(folder: &Path, name: &str, path: &str, is_021: bool) -> Module {
    let inside = folder.join(name);
    let beside: PathBuf = folder.join(format!("{name}.rs"));
    let file = if beside.exists() {
        beside
    } else {
        inside.join("mod.rs")
    };
    read_file(&file, &inside, path, is_021)
}
