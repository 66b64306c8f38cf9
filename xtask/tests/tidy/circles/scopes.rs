//! What each module of a crate defines, imports and names.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::text::{is_for_tests, is_word};

/// The modules of a crate; the first is its root.
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// A file, or a module in braces inside one.
#[derive(Default)]
pub(crate) struct Module {
    /// None for a folder whose own file is not part of the program.
    pub(crate) file: Option<usize>,
    pub(crate) parent: usize,
    pub(crate) children: HashMap<String, usize>,
    /// Names of what is defined here.
    pub(crate) items: HashSet<String>,
    pub(crate) imports: Vec<Import>,
    /// Indices of imports by the name they bring.
    pub(crate) imported: HashMap<String, Vec<usize>>,
    /// Modules all of whose names are imported.
    pub(crate) globs: Vec<Vec<String>>,
    /// Paths of several names, outside of imports.
    pub(crate) mentions: Vec<Vec<String>>,
    /// Names that stand alone or begin a path, outside of imports.
    pub(crate) words: HashSet<String>,
}

/// One name of a `use`.
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    pub(crate) name: String,
    /// Whether others may get the name from here.
    pub(crate) handed_on: bool,
}

const ITEMS: &[&str] = &[
    "fn", "struct", "enum", "union", "trait", "type", "const", "static", "mut",
];

impl Tree {
    /// Reads `files`: paths below `src`, with code that has no comments and no texts.
    pub(crate) fn of(files: &BTreeMap<String, String>) -> Self {
        let mut tree = Self {
            modules: vec![Module::default()],
        };
        let mut read = Vec::new();
        for (file, (path, code)) in files.iter().enumerate() {
            let mut names: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
            if names.last() == Some(&"mod") || names == ["lib"] {
                names.pop();
            }
            let module = names
                .into_iter()
                .fold(0, |module, name| tree.child(module, name));
            tree.modules[module].file = Some(file);
            read.push((module, code));
        }
        for (module, code) in read {
            Reader {
                tree: &mut tree,
                tokens: tokens(code),
                at: 0,
            }
            .module(module);
        }
        tree
    }

    fn child(&mut self, parent: usize, name: &str) -> usize {
        let next = self.modules.len();
        let child = *self.modules[parent]
            .children
            .entry(name.into())
            .or_insert(next);
        if child == next {
            self.modules.push(Module {
                parent,
                ..Module::default()
            });
        }
        child
    }
}

/// Splits code into words, `::`, and other characters one by one; lifetimes are left out.
pub(crate) fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let length = if is_word(c) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            c.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if c == '\'' && after.starts_with(is_word) {
            rest = after.trim_start_matches(is_word);
            continue;
        }
        if !c.is_whitespace() {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

/// Reads the tokens of one file into modules.
struct Reader<'a> {
    tree: &'a mut Tree,
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    /// The token `ahead` of the next one; empty after the end.
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens
            .get(self.at + ahead)
            .copied()
            .unwrap_or_default()
    }

    fn before(&self) -> &'a str {
        self.at.checked_sub(1).map_or("", |at| self.tokens[at])
    }

    /// Reads until the brace that closes the module, or to the end of the file.
    fn module(&mut self, module: usize) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "#" if self.skip_test() => continue,
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" if depth == 0 => return,
                "}" | ")" | "]" => depth -= 1,
                "use" if self.peek(1) != "<" => {
                    let public = self.is_handed_on();
                    self.at += 1;
                    self.import(module, &[], public);
                    continue;
                }
                "mod" if depth == 0 && self.peek(2) == "{" => {
                    let child = self.tree.child(module, self.peek(1));
                    self.tree.modules[child].file = self.tree.modules[module].file;
                    self.at += 3;
                    self.module(child);
                }
                "macro_rules" if self.peek(1) == "!" => {
                    self.define(module, self.peek(2));
                    self.at += 2;
                }
                kind if depth == 0 && ITEMS.contains(&kind) && self.is_item() => {
                    self.at += 1;
                    self.define(module, self.peek(0));
                }
                word if word.starts_with(is_word) => {
                    self.mention(module);
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn define(&mut self, module: usize, name: &str) {
        self.tree.modules[module].items.insert(name.into());
    }

    /// Whether a word follows that is the name of an item, and not of what is a constant or mutable elsewhere.
    fn is_item(&self) -> bool {
        let is_name = self.peek(1).starts_with(is_word) && !ITEMS.contains(&self.peek(1));
        let place = self.before();
        let within_type = ["<", ",", "*", "&"].contains(&place);
        is_name && !within_type && (self.peek(0) != "mut" || place == "static")
    }

    /// Whether `pub` stands before the next token, with or without where.
    fn is_handed_on(&self) -> bool {
        self.before() == "pub" || self.before() == ")"
    }

    /// Reads one path of names outside of imports.
    fn mention(&mut self, module: usize) {
        let (start, follows) = (self.at, ["::", "."].contains(&self.before()));
        self.at += 1;
        while self.peek(0) == "::" && self.peek(1).starts_with(is_word) {
            self.at += 2;
        }
        if follows {
            return;
        }
        let path: Vec<String> = self.tokens[start..self.at]
            .iter()
            .step_by(2)
            .map(|name| name.to_string())
            .collect();
        let module = &mut self.tree.modules[module];
        module.words.insert(path[0].clone());
        if path.len() > 1 {
            module.mentions.push(path);
        }
    }

    /// Reads one tree of a `use` below `prefix`, and the comma, brace or semicolon after it.
    fn import(&mut self, module: usize, prefix: &[String], handed_on: bool) {
        let mut path = prefix.to_vec();
        loop {
            match self.peek(0) {
                "" => return,
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.peek(0)) {
                        self.import(module, &path, handed_on);
                    }
                    self.at += 1;
                    path.clear();
                }
                "*" => {
                    self.at += 1;
                    self.tree.modules[module]
                        .globs
                        .push(std::mem::take(&mut path));
                }
                "," | ";" | "}" => {
                    let last = path.last().cloned();
                    self.bring(module, path, last, handed_on);
                    break;
                }
                "as" => {
                    let name = Some(self.peek(1).to_string());
                    self.at += 2;
                    self.bring(module, std::mem::take(&mut path), name, handed_on);
                }
                "self" if !path.is_empty() => self.at += 1,
                word if word.starts_with(is_word) => {
                    path.push(word.into());
                    self.at += 1;
                }
                _ => self.at += 1,
            }
        }
        if self.peek(0) != "}" {
            self.at += 1;
        }
    }

    fn bring(&mut self, module: usize, path: Vec<String>, name: Option<String>, handed_on: bool) {
        if let (false, Some(name)) = (path.is_empty(), name) {
            let module = &mut self.tree.modules[module];
            let imported = module.imported.entry(name.clone()).or_default();
            imported.push(module.imports.len());
            module.imports.push(Import {
                path,
                name,
                handed_on,
            });
        }
    }

    /// Goes past an attribute for tests and the item it stands before; returns whether there was one.
    fn skip_test(&mut self) -> bool {
        if self.peek(1) != "[" || self.peek(2) != "cfg" {
            return false;
        }
        let end = self.tokens[self.at..]
            .iter()
            .position(|token| *token == "]")
            .unwrap_or(0);
        let condition = self.tokens[self.at + 4..self.at + end - 1].concat();
        if !is_for_tests(&condition) {
            return false;
        }
        self.at += end + 1;
        while self.peek(0) == "#" {
            let end = self.tokens[self.at..]
                .iter()
                .position(|token| *token == "]");
            self.at += end.unwrap_or(0) + 1;
        }
        if self.peek(0) == "pub" {
            self.at += if self.peek(1) == "(" { 4 } else { 1 };
        }
        let (is_field, is_import) = (self.peek(1) == ":", self.peek(0) == "use");
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" if depth == 0 => return true,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            let token = self.peek(0);
            self.at += 1;
            if depth == 0
                && (token == ";" || token == "}" && !is_import || token == "," && is_field)
            {
                return true;
            }
        }
        true
    }
}
