//! Reads one source file: the modules that it declares, what it imports, and the paths that it
//! names. Code of tests is left out.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A path as it is written, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// What one file, or one inline module in a file, says about a module.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Modules in files of their own, with the file name if a `path` attribute gives one.
    pub(crate) declared: Vec<(String, Option<String>)>,
    /// Modules whose body is in this file.
    pub(crate) inline: Vec<(String, Source)>,
    /// Names that `use` brings into the module, each with the path that it stands for.
    pub(crate) imports: Vec<(String, Vec<String>)>,
    /// Paths that begin with `crate` or `super`.
    pub(crate) named: Vec<Named>,
}

const ITEMS: [&str; 16] = [
    "fn",
    "mod",
    "use",
    "struct",
    "enum",
    "union",
    "trait",
    "type",
    "const",
    "static",
    "impl",
    "extern",
    "unsafe",
    "async",
    "macro_rules",
    "macro",
];

/// Reads the text of a file.
pub(crate) fn read(text: &str) -> Result<Source, proc_macro2::LexError> {
    let tokens: TokenStream = text.parse()?;
    let mut source = Source::default();
    source.items(&tokens.into_iter().collect::<Vec<_>>(), true);
    Ok(source)
}

impl Source {
    /// Goes through a list of tokens and the groups in it. An import inside a block (`is_module` is
    /// false) adds no name to the module.
    fn items(&mut self, tokens: &[TokenTree], is_module: bool) {
        let (mut at, mut file) = (0, None);
        while at < tokens.len() {
            if let Some((attribute, behind)) = attribute(tokens, at) {
                at = behind;
                if is_of_tests(attribute) {
                    at = behind_item(tokens, at);
                }
                file = path_attribute(attribute).or(file);
                continue;
            }
            at = match (word(tokens.get(at)).as_deref(), word(tokens.get(at + 1))) {
                (Some("mod"), Some(name)) => self.module(name, file.take(), tokens.get(at + 2), at),
                (Some("use"), Some(_)) => self.import(tokens, at + 1, is_module),
                (Some("crate" | "super"), _) => self.path(tokens, at),
                _ => {
                    if let Some(TokenTree::Group(group)) = tokens.get(at) {
                        self.items(&inside(group), false);
                    }
                    at + 1
                }
            };
        }
    }

    fn module(&mut self, name: String, file: Option<String>, body: Option<&TokenTree>, at: usize) -> usize {
        match body {
            Some(TokenTree::Group(group)) => {
                let mut source = Self::default();
                source.items(&inside(group), true);
                self.inline.push((name, source));
            }
            _ => self.declared.push((name, file)),
        }
        at + 3
    }

    fn import(&mut self, tokens: &[TokenTree], from: usize, is_module: bool) -> usize {
        let end = (from..tokens.len()).find(|&at| is_mark(tokens.get(at), ';')).unwrap_or(tokens.len());
        let mut leaves = Vec::new();
        use_tree(&[], &tokens[from..end], &mut leaves);
        for (name, named) in leaves {
            if matches!(named.path[0].as_str(), "crate" | "super") {
                self.named.push(named.clone());
            }
            if is_module {
                self.imports.push((name, named.path));
            }
        }
        end + 1
    }

    /// Notes a path in an expression or a type if `::` follows its first word. Returns the index
    /// after the path.
    fn path(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let mut path: Vec<String> = word(tokens.get(at)).into_iter().collect();
        let mut end = at + 1;
        while let (true, Some(next)) = (is_double_colon(tokens, end), word(tokens.get(end + 2))) {
            path.push(next);
            end += 3;
        }
        // `pub(in crate::a)` says who may see an item, not what the module uses.
        let is_visibility = at == 1 && word(tokens.first()).as_deref() == Some("in");
        if path.len() > 1 && !is_visibility {
            self.named.push(Named { path, line: line(&tokens[at]) });
        }
        end
    }
}

/// Collects the leaves of a `use` tree: the name that each leaf brings into the module, and its
/// path. For a leaf `*`, the name is empty.
fn use_tree(prefix: &[String], tokens: &[TokenTree], leaves: &mut Vec<(String, Named)>) {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(ident) if *ident == "as" => {
                let name = word(tokens.get(at + 1)).unwrap_or_default();
                return leaves.push((name, Named { path, line: line(&tokens[at]) }));
            }
            // In braces, `self` stands for the path before them.
            TokenTree::Ident(ident) if *ident == "self" && !prefix.is_empty() => {}
            TokenTree::Ident(ident) => path.push(ident.to_string()),
            TokenTree::Group(group) => {
                let inner = inside(group);
                let parts = inner.split(|token| is_mark(Some(token), ','));
                return parts.filter(|part| !part.is_empty()).for_each(|part| use_tree(&path, part, leaves));
            }
            _ => {}
        }
        at += 1;
    }
    let name = if tokens.iter().any(|token| is_mark(Some(token), '*')) { None } else { path.last().cloned() };
    if let (Some(token), false) = (tokens.first(), path.is_empty()) {
        leaves.push((name.unwrap_or_default(), Named { line: line(token), path }));
    }
}

/// The attribute that begins at a token, and the index after it.
fn attribute(tokens: &[TokenTree], at: usize) -> Option<(&Group, usize)> {
    if !is_mark(tokens.get(at), '#') {
        return None;
    }
    let at = if is_mark(tokens.get(at + 1), '!') { at + 2 } else { at + 1 };
    match tokens.get(at) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => Some((group, at + 1)),
        _ => None,
    }
}

/// Whether an attribute marks code of tests: `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_of_tests(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    text == "test" || text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

fn path_attribute(attribute: &Group) -> Option<String> {
    let text = attribute.stream().to_string();
    let value = text.strip_prefix("path")?.trim_start().strip_prefix('=')?.trim();
    Some(value.trim_matches('"').to_owned())
}

/// The index after the item, field or statement that begins at a token.
fn behind_item(tokens: &[TokenTree], mut at: usize) -> usize {
    while let Some((_, behind)) = attribute(tokens, at) {
        at = behind;
    }
    if word(tokens.get(at)).as_deref() == Some("pub") {
        at += 1;
        if matches!(tokens.get(at), Some(TokenTree::Group(_))) {
            at += 1;
        }
    }
    let is_item = word(tokens.get(at)).is_some_and(|word| ITEMS.contains(&word.as_str()));
    while at < tokens.len() {
        let ends = match &tokens[at] {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            token => is_mark(Some(token), ';') || (!is_item && is_mark(Some(token), ',')),
        };
        at += 1;
        if ends {
            break;
        }
    }
    at
}

fn inside(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

fn word(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_mark(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

fn is_double_colon(tokens: &[TokenTree], at: usize) -> bool {
    is_mark(tokens.get(at), ':') && is_mark(tokens.get(at + 1), ':')
}

fn line(token: &TokenTree) -> usize {
    token.span().start().line
}
