//! Trace text as events. A request opens with `ext4_request_blocks` and closes with `ext4_allocate_blocks` of the
//! same thread; when the thread goes on without the latter, the request failed.

use std::collections::HashMap;

#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) cpu: u32,
    pub(crate) ino: u32,
    pub(crate) flags: u32,
    pub(crate) len: u32,
    pub(crate) logical: u32,
    pub(crate) goal: u64,
    pub(crate) left: (u32, u64),
    pub(crate) right: (u32, u64),
    /// File size and open writers when it began, from our markers.
    pub(crate) size: u64,
    pub(crate) open: bool,
    /// First block and clusters given; `None` when it failed.
    pub(crate) given: Option<(u64, u32)>,
    /// `orig`, `goal`, `result` of a search, or `orig`, nothing, `result` of a preallocation hit.
    pub(crate) search: Option<Search>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search {
    pub(crate) orig: String,
    pub(crate) goal: String,
    pub(crate) result: String,
    pub(crate) found: u32,
    pub(crate) scanned: u32,
    pub(crate) criterion: u32,
    pub(crate) flags: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Request(Request),
    Discard { ino: u32 },
    Free { group: u32, start: u32, count: u32, txn: Option<u32> },
    Inode { ino: u32 },
    Commit { txn: u32 },
}

const FLAGS: [(&str, u32); 12] = [
    ("HINT_MERGE", 0x1),
    ("HINT_FIRST", 0x8),
    ("HINT_DATA", 0x20),
    ("HINT_NOPREALLOC", 0x40),
    ("HINT_GRP_ALLOC", 0x80),
    ("HINT_GOAL_ONLY", 0x100),
    ("HINT_TRY_GOAL", 0x200),
    ("DELALLOC_RESV", 0x400),
    ("STREAM_ALLOC", 0x800),
    ("USE_ROOT_BLKS", 0x1000),
    ("USE_RESV", 0x2000),
    ("STRICT_CHECK", 0x4000),
];

const CRITERIA: [&str; 5] =
    ["CR_POWER2_ALIGNED", "CR_GOAL_LEN_FAST", "CR_BEST_AVAIL_LEN", "CR_GOAL_LEN_SLOW", "CR_ANY_FREE"];

fn flags(text: &str) -> u32 {
    text.split('|')
        .filter(|name| !name.is_empty())
        .map(|name| {
            FLAGS.iter().find(|(known, _)| *known == name).map_or_else(
                || u32::from_str_radix(name.trim_start_matches("0x"), 16).unwrap_or(0),
                |&(_, bit)| bit,
            )
        })
        .sum()
}

/// `name value` pairs; a value may be missing (empty flags).
fn fields(text: &str) -> HashMap<&str, &str> {
    const NAMES: [&str; 22] = [
        "ino",
        "inode",
        "flags",
        "len",
        "len:",
        "lblk",
        "goal",
        "lleft",
        "lright",
        "pleft",
        "pright",
        "block",
        "orig",
        "result",
        "blks",
        "grps",
        "cr",
        "tail",
        "extent",
        "tid",
        "transaction",
        "reserve_blocks",
    ];
    let mut map = HashMap::new();
    let mut name = "";
    for word in text.split_whitespace() {
        if NAMES.contains(&word) {
            name = word;
            map.insert(name, "");
        } else if !name.is_empty() {
            map.insert(name, word);
            name = "";
        }
    }
    map
}

fn number<T: std::str::FromStr>(map: &HashMap<&str, &str>, name: &str) -> T {
    let text = map.get(name).unwrap_or_else(|| panic!("no {name} in {map:?}"));
    text.parse().unwrap_or_else(|_| panic!("{name}={text} in {map:?}"))
}

#[derive(Default)]
struct Parser {
    events: Vec<Event>,
    /// Index of the request each thread has open.
    open: HashMap<String, usize>,
    /// Transaction of the handle each thread started last.
    txn: HashMap<String, u32>,
    sizes: HashMap<u32, u64>,
    writers: HashMap<u32, u32>,
    data_waits: bool,
}

/// Parses a trace. `data_waits`: there is a journal, and frees of data wait for its commit.
pub(crate) fn parse(text: &str, data_waits: bool) -> Vec<Event> {
    let mut parser = Parser { data_waits, ..Parser::default() };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        parser.line(line);
    }
    parser.events
}

impl Parser {
    fn line(&mut self, line: &str) {
        let Some((thread, rest)) = line.split_once(" [") else { return };
        let Some((cpu, rest)) = rest.split_once(']') else { return };
        let Some((_, rest)) = rest.split_once(": ") else { return };
        let Some((event, text)) = rest.split_once(": ") else { return };
        let thread = thread.trim().to_owned();
        match event {
            "tracing_mark_write" => self.marker(text),
            "ext4_request_blocks" => self.request(thread, cpu, text),
            "ext4_mballoc_alloc" | "ext4_mballoc_prealloc" => self.outcome(&thread, text),
            "ext4_allocate_blocks" => {
                let map = fields(text);
                if let Some(at) = self.open.remove(&thread)
                    && let Event::Request(request) = &mut self.events[at]
                {
                    request.given = Some((number(&map, "block"), number(&map, "len")));
                }
            }
            "ext4_discard_preallocations" => {
                self.events.push(Event::Discard { ino: number(&fields(text), "ino") });
            }
            "ext4_allocate_inode" => {
                self.events.push(Event::Inode { ino: number(&fields(text), "ino") });
            }
            "ext4_mballoc_free" => self.free(&thread, text),
            "jbd2_handle_start" | "jbd2_handle_restart" => {
                self.txn.insert(thread, number(&fields(text), "tid"));
            }
            "jbd2_end_commit" => {
                self.events.push(Event::Commit { txn: number(&fields(text), "transaction") })
            }
            _ => {}
        }
    }

    fn marker(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        match *words.as_slice() {
            ["size", ino, size] => {
                self.sizes.insert(ino.parse().unwrap(), size.parse().unwrap());
            }
            ["open", ino] => *self.writers.entry(ino.parse().unwrap()).or_default() += 1,
            ["close", ino] => *self.writers.entry(ino.parse().unwrap()).or_default() -= 1,
            _ => {}
        }
    }

    fn request(&mut self, thread: String, cpu: &str, text: &str) {
        let map = fields(text);
        let ino = number(&map, "ino");
        self.open.insert(thread, self.events.len());
        self.events.push(Event::Request(Request {
            cpu: cpu.parse().unwrap(),
            ino,
            flags: flags(map["flags"]),
            len: number(&map, "len"),
            logical: number(&map, "lblk"),
            goal: number(&map, "goal"),
            left: (number(&map, "lleft"), number(&map, "pleft")),
            right: (number(&map, "lright"), number(&map, "pright")),
            size: self.sizes.get(&ino).copied().unwrap_or(0),
            open: self.writers.get(&ino).copied().unwrap_or(0) > 0,
            ..Request::default()
        }));
    }

    fn outcome(&mut self, thread: &str, text: &str) {
        let map = fields(text);
        let Some(&at) = self.open.get(thread) else { return };
        let Event::Request(request) = &mut self.events[at] else { return };
        let word = |name: &str| map.get(name).copied().unwrap_or("").to_owned();
        let criterion = word("cr");
        let place = CRITERIA.iter().position(|name| *name == criterion);
        request.search = Some(Search {
            orig: word("orig"),
            goal: word("goal"),
            result: word("result"),
            found: word("blks").parse().unwrap_or(0),
            scanned: word("grps").parse().unwrap_or(0),
            criterion: place.map_or(5, |place| place as u32),
            flags: flags(&word("flags")),
        });
    }

    fn free(&mut self, thread: &str, text: &str) {
        let map = fields(text);
        let place: Vec<u32> = map["extent"].split('/').map(|n| n.parse().unwrap()).collect();
        let txn = self.data_waits.then(|| self.txn.get(thread).copied()).flatten();
        self.events.push(Event::Free { group: place[0], start: place[1], count: place[2], txn });
    }
}
