//! The modules of a crate as its files declare them: the definitions, imports and names of each.
//!
//! Code that only tests compile is left out. Names are resolved as by the compiler, through imports,
//! re-exports and globs, to the file that defines the item. Two kinds are not covered: methods,
//! whose receiver only the compiler knows, and names that a macro generates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// The place of a module in [`Crate::modules`].
pub(crate) type Id = usize;

#[derive(Default)]
struct Module {
    parent: Id,
    file: PathBuf,
    children: BTreeMap<String, Id>,
    items: BTreeSet<String>,
    imports: Vec<Import>,
    globs: Vec<Vec<String>>,
    /// Paths in the code, with their lines.
    named: Vec<(Vec<String>, usize)>,
}

struct Import {
    name: String,
    path: Vec<String>,
    line: usize,
    /// True for `pub use`, which passes a name on and is no use by itself.
    public: bool,
}

/// A crate as a list of modules; the first is its root.
pub(crate) struct Crate {
    modules: Vec<Module>,
}

enum Target {
    Module(Id),
    Item(Id),
}

/// A file needs a name that another file defines.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    pub(crate) line: usize,
    pub(crate) name: String,
}

impl Crate {
    /// The crate with this root file.
    pub(crate) fn read(root: &Path) -> Self {
        let mut read =
            Self { modules: vec![Module { file: root.to_owned(), ..Module::default() }] };
        let folder = root.parent().expect("a file has a folder").to_owned();
        read.file(0, root, &folder);
        read
    }

    /// Reads a file; its submodules are below `folder`.
    fn file(&mut self, module: Id, file: &Path, folder: &Path) {
        let text = std::fs::read_to_string(file).expect("a module's file");
        let parsed = syn::parse_file(&text).expect("Rust");
        self.items(module, parsed.items, folder);
    }

    fn items(&mut self, module: Id, items: Vec<syn::Item>, folder: &Path) {
        for item in items {
            if is_for_tests(attributes(&item)) {
                continue;
            }
            match item {
                syn::Item::Mod(declared) => self.declared(module, declared, folder),
                item => {
                    let mut locals = Locals::default();
                    locals.visit_item(&item);
                    let mut names = Names { module: &mut self.modules[module], locals };
                    if let Some(name) = name_of(&item) {
                        names.module.items.insert(name);
                    }
                    names.visit_item(&item);
                }
            }
        }
    }

    fn declared(&mut self, parent: Id, declared: syn::ItemMod, folder: &Path) {
        let (name, id) = (declared.ident.to_string(), self.modules.len());
        let inside = folder.join(&name);
        // A `#[path]` leads out of the crate: that file belongs to another crate.
        let given = declared.attrs.iter().any(|attribute| attribute.path().is_ident("path"));
        let places = [folder.join(format!("{name}.rs")), inside.join("mod.rs")];
        let file = match &declared.content {
            None if given => return,
            None => places.into_iter().find(|file| file.exists()).expect("a module's file"),
            Some(_) => self.modules[parent].file.clone(),
        };
        self.modules.push(Module { parent, file: file.clone(), ..Module::default() });
        self.modules[parent].children.insert(name, id);
        match declared.content {
            Some((_, items)) => self.items(id, items, &inside),
            None => self.file(id, &file, &inside),
        }
    }

    /// Every file of the crate, its root among them.
    pub(crate) fn files(&self) -> BTreeSet<&Path> {
        self.modules.iter().map(|module| &*module.file).collect()
    }

    /// The pairs of a file and another file that it needs, each once.
    pub(crate) fn edges(&self) -> BTreeMap<(PathBuf, PathBuf), Edge> {
        let mut edges = BTreeMap::new();
        for (id, module) in self.modules.iter().enumerate() {
            let imported = module.imports.iter().filter(|import| !import.public);
            let imported = imported.map(|import| (&import.path, import.line));
            for (path, line) in
                imported.chain(module.named.iter().map(|(path, line)| (path, *line)))
            {
                let Some(Target::Item(to)) = self.resolve(id, path, 0) else { continue };
                let (from, to) = (module.file.clone(), self.modules[to].file.clone());
                if from != to {
                    let edge =
                        Edge { from: from.clone(), to: to.clone(), line, name: path.join("::") };
                    edges.entry((from, to)).or_insert(edge);
                }
            }
        }
        edges
    }

    fn resolve(&self, from: Id, path: &[String], depth: usize) -> Option<Target> {
        let (mut at, mut rest) = (from, path);
        while let Some((first, behind)) = rest.split_first() {
            match first.as_str() {
                "crate" => at = 0,
                "self" => {}
                "super" => at = self.modules[at].parent,
                name => match self.find(at, name, behind.is_empty(), depth)? {
                    Target::Module(module) => at = module,
                    item => return Some(item),
                },
            }
            rest = behind;
        }
        Some(Target::Module(at))
    }

    fn find(&self, at: Id, name: &str, is_last: bool, depth: usize) -> Option<Target> {
        let module = &self.modules[at];
        let child = module.children.get(name).map(|child| Target::Module(*child));
        let item = module.items.contains(name).then_some(Target::Item(at));
        let here = if is_last { item.or(child) } else { child.or(item) };
        // A ring of imports is not valid Rust, but a ring of globs is.
        if here.is_some() || depth > 8 {
            return here;
        }
        let import = module.imports.iter().filter(|import| import.name == name);
        let globs =
            module.globs.iter().filter_map(|glob| match self.resolve(at, glob, depth + 1)? {
                Target::Module(globbed) if globbed != at => {
                    self.find(globbed, name, is_last, depth + 1)
                }
                _ => None,
            });
        import.filter_map(|import| self.outer(at, import, depth)).chain(globs).next()
    }

    /// The target of an import; `use clap::clap` does not mean itself.
    fn outer(&self, at: Id, import: &Import, depth: usize) -> Option<Target> {
        let own = import.path.first() == Some(&import.name);
        let known = self.modules[at].children.contains_key(&import.name);
        if own && !known { None } else { self.resolve(at, &import.path, depth + 1) }
    }
}

/// Collects the names in one item.
struct Names<'a> {
    module: &'a mut Module,
    locals: Locals,
}

/// Names that an item binds: arguments and variables, which hide functions of the same name.
#[derive(Default)]
struct Locals {
    names: BTreeSet<String>,
}

impl<'a> Visit<'a> for Locals {
    fn visit_pat_ident(&mut self, bound: &'a syn::PatIdent) {
        self.names.insert(bound.ident.to_string());
        visit::visit_pat_ident(self, bound);
    }
}

impl Names<'_> {
    fn named(&mut self, path: Vec<String>, line: usize) {
        let is_local = path.len() == 1 && self.locals.names.contains(&path[0]);
        if !is_local {
            self.module.named.push((path, line));
        }
    }

    fn tree(&mut self, tree: &syn::UseTree, prefix: &[String], public: bool) {
        let joined = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        let (name, ident, path) = match tree {
            syn::UseTree::Path(path) => return self.tree(&path.tree, &joined(&path.ident), public),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.tree(tree, prefix, public));
            }
            syn::UseTree::Glob(_) => return self.module.globs.push(prefix.to_vec()),
            syn::UseTree::Name(name) if name.ident == "self" => {
                (prefix.last().cloned().unwrap_or_default(), &name.ident, prefix.to_vec())
            }
            syn::UseTree::Name(name) => (name.ident.to_string(), &name.ident, joined(&name.ident)),
            syn::UseTree::Rename(rename) => {
                (rename.rename.to_string(), &rename.ident, joined(&rename.ident))
            }
        };
        self.module.imports.push(Import { name, path, line: ident.span().start().line, public });
    }

    /// Paths in the arguments of a macro, which are tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |at: usize, sign: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                // The identifier is a field or a method.
                TokenTree::Ident(_) if at > 0 && is(at - 1, '.') => {}
                TokenTree::Ident(first) => {
                    let line = first.span().start().line;
                    let mut path = vec![first.to_string()];
                    while is(at + 1, ':')
                        && is(at + 2, ':')
                        && let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    self.named(path, line);
                }
                _ => {}
            }
            at += 1;
        }
    }
}

impl<'a> Visit<'a> for Names<'_> {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let public = !matches!(item.vis, syn::Visibility::Inherited);
        self.tree(&item.tree, &[], public);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if let Some(first) = path.segments.first() {
            self.named(names, first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.tokens(call.tokens.clone());
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    // Names in attributes belong to derives and to serde.
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}
}

/// True for `#[cfg(test)]` and `#[cfg(any(test, feature = "fixtures"))]`.
pub(crate) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test"
                || condition.starts_with("any (test")
                || condition.starts_with("any(test")
        }
        _ => false,
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
