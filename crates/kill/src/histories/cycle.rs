//! Dependencies of transactions, the shortest cycle among them, and its name.
//!
//! Real time orders most pairs of transactions. A chain of nodes stands for these edges: each end
//! of a transaction is a node, and the last node before the beginning of a transaction leads to
//! that transaction.

use std::collections::VecDeque;
use std::fmt;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{EdgeFiltered, EdgeRef};
use rustc_hash::FxHashMap;

use super::judge::List;

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It appended to the list before.
    Ww(List),
    /// The other read its last append.
    Wr(List),
    /// It did not read the next append, by the other.
    Rw(List),
    /// It ended before the other began.
    Time,
}

/// One transaction before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    pub kind: Kind,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        match self.kind {
            Kind::Ww(list) => write!(f, "T{from} -ww {list}-> T{to}"),
            Kind::Wr(list) => write!(f, "T{from} -wr {list}-> T{to}"),
            Kind::Rw(list) => write!(f, "T{from} -rw {list}-> T{to}"),
            Kind::Time => write!(f, "T{from} -time-> T{to}"),
        }
    }
}

/// Transactions, the nodes of time behind them, and edges.
pub struct Graph {
    graph: DiGraph<(), Kind, u32>,
    transactions: usize,
}

/// How much a search for a cycle looks at: beginnings, once direct ones are not found.
const BEGINNINGS_MAX: usize = 2000;

impl Graph {
    pub fn new(transactions: usize) -> Graph {
        let mut graph = DiGraph::with_capacity(2 * transactions, 6 * transactions);
        for _ in 0..transactions {
            graph.add_node(());
        }
        Graph { graph, transactions }
    }

    pub fn add(&mut self, from: usize, to: usize, kind: Kind) {
        if from != to {
            self.graph.add_edge(NodeIndex::new(from), NodeIndex::new(to), kind);
        }
    }

    pub fn len(&self) -> usize {
        self.graph.edge_count()
    }

    /// Beginning and end of each transaction that takes part; an end of `u64::MAX` is unknown.
    pub fn add_times(&mut self, times: &[Option<(u64, u64)>]) {
        let mut ends: Vec<(u64, usize)> = Vec::with_capacity(times.len());
        let told = times.iter().enumerate().filter_map(|(t, time)| time.map(|(_, end)| (end, t)));
        ends.extend(told.filter(|(end, _)| *end != u64::MAX));
        ends.sort_unstable();
        let mut chain: Vec<NodeIndex> = Vec::with_capacity(ends.len());
        for (_, t) in &ends {
            let node = self.graph.add_node(());
            self.graph.add_edge(NodeIndex::new(*t), node, Kind::Time);
            if let Some(before) = chain.last() {
                self.graph.add_edge(*before, node, Kind::Time);
            }
            chain.push(node);
        }
        for (t, time) in times.iter().enumerate() {
            let Some((begin, _)) = time else { continue };
            let before = ends.partition_point(|(end, _)| end < begin);
            if let Some(node) = before.checked_sub(1).and_then(|last| chain.get(last)) {
                self.graph.add_edge(*node, NodeIndex::new(t), Kind::Time);
            }
        }
    }

    /// Nodes that lie on cycles of edges that count, component by component.
    fn components(&self, counts: &dyn Fn(Kind) -> bool) -> Vec<Vec<NodeIndex>> {
        let filtered = EdgeFiltered::from_fn(&self.graph, |edge| counts(*edge.weight()));
        let mut all = kosaraju_scc(&filtered);
        all.retain(|component| component.len() > 1);
        all.sort_by_key(Vec::len);
        all
    }
}

/// The shortest cycle of the simplest kind; `None` if there is none.
pub fn shortest(graph: &Graph, times: &[Option<(u64, u64)>]) -> Option<Vec<Edge>> {
    if graph.components(&|_| true).is_empty() {
        return None;
    }
    type Counts = dyn Fn(Kind) -> bool;
    let stages: [&Counts; 4] = [
        &|kind| matches!(kind, Kind::Ww(_)),
        &|kind| matches!(kind, Kind::Ww(_) | Kind::Wr(_)),
        &|kind| kind != Kind::Time,
        &|_| true,
    ];
    stages.iter().find_map(|counts| {
        let components = graph.components(*counts);
        if components.is_empty() {
            return None;
        }
        let with_time = counts(Kind::Time);
        let direct = components.iter().find_map(|nodes| graph.direct(nodes, *counts, with_time.then_some(times)));
        direct.or_else(|| components.iter().find_map(|nodes| graph.search(nodes, *counts)))
    })
}

impl Graph {
    /// A cycle of two transactions, or of three with one edge of time.
    fn direct(
        &self,
        nodes: &[NodeIndex],
        counts: &dyn Fn(Kind) -> bool,
        times: Option<&[Option<(u64, u64)>]>,
    ) -> Option<Vec<Edge>> {
        let mut edges: FxHashMap<(usize, usize), Edge> = FxHashMap::default();
        // The neighbour that ends first.
        let mut first: FxHashMap<usize, (u64, Edge)> = FxHashMap::default();
        let end = |t: usize| times.and_then(|times| times.get(t).copied().flatten()).map_or(u64::MAX, |(_, end)| end);
        let begin = |t: usize| times.and_then(|times| times.get(t).copied().flatten()).map_or(0, |(begin, _)| begin);
        for edge in nodes.iter().flat_map(|node| self.graph.edges(*node)) {
            let (from, to, kind) = (edge.source().index(), edge.target().index(), *edge.weight());
            if kind == Kind::Time || !counts(kind) {
                continue;
            }
            let edge = Edge { from, to, kind };
            edges.insert((from, to), edge);
            let new = (end(to), edge);
            first
                .entry(from)
                .and_modify(|old| {
                    if new.0 < old.0 {
                        *old = new
                    }
                })
                .or_insert(new);
        }
        let mut all: Vec<&Edge> = edges.values().collect();
        all.sort_by_key(|edge| (edge.from, edge.to));
        let time = |from, to| Edge { from, to, kind: Kind::Time };
        let two = all.iter().find_map(|edge| {
            let back = edges.get(&(edge.to, edge.from)).copied();
            let back = back.or_else(|| (end(edge.to) < begin(edge.from)).then(|| time(edge.to, edge.from)));
            back.map(|back| vec![**edge, back])
        });
        two.or_else(|| {
            all.iter().find_map(|edge| {
                let (ends, next) = first.get(&edge.to)?;
                (*ends < begin(edge.from)).then(|| vec![**edge, *next, time(next.to, edge.from)])
            })
        })
    }

    /// The shortest cycle through some of the nodes. Nodes of time cost nothing but the way into
    /// them.
    fn search(&self, nodes: &[NodeIndex], counts: &dyn Fn(Kind) -> bool) -> Option<Vec<Edge>> {
        let mut best: Option<Vec<Edge>> = None;
        let begins = nodes.iter().filter(|node| node.index() < self.transactions);
        for begin in begins.take(BEGINNINGS_MAX) {
            let below = best.as_ref().map_or(usize::MAX, Vec::len);
            if let Some(cycle) = self.around(*begin, counts, below) {
                best = Some(cycle);
            }
        }
        best
    }

    /// The shortest cycle through a node that has fewer than `below` edges.
    fn around(&self, begin: NodeIndex, counts: &dyn Fn(Kind) -> bool, below: usize) -> Option<Vec<Edge>> {
        let mut from: FxHashMap<NodeIndex, (NodeIndex, Kind)> = FxHashMap::default();
        let mut cost: FxHashMap<NodeIndex, usize> = FxHashMap::default();
        let mut next = VecDeque::from([(begin, 0usize)]);
        while let Some((node, at)) = next.pop_front() {
            if cost.get(&node).is_some_and(|cost| *cost < at) {
                continue;
            }
            for edge in self.graph.edges(node) {
                let (to, kind) = (edge.target(), *edge.weight());
                let costs = at + usize::from(node.index() < self.transactions);
                if !counts(kind) || costs >= below {
                    continue;
                }
                if to == begin {
                    from.insert(to, (node, kind));
                    return Some(self.way_back(begin, &from));
                }
                if cost.get(&to).is_none_or(|cost| *cost > costs) {
                    cost.insert(to, costs);
                    from.insert(to, (node, kind));
                    if costs == at { next.push_front((to, costs)) } else { next.push_back((to, costs)) }
                }
            }
        }
        None
    }

    /// The edges of a cycle, those through nodes of time as one.
    fn way_back(&self, begin: NodeIndex, from: &FxHashMap<NodeIndex, (NodeIndex, Kind)>) -> Vec<Edge> {
        let mut edges = Vec::new();
        let (mut node, mut to) = (begin, begin);
        while let Some((before, kind)) = from.get(&node) {
            node = *before;
            if node.index() < self.transactions {
                edges.push(Edge { from: node.index(), to: to.index(), kind: *kind });
                to = node;
            }
            if node == begin {
                break;
            }
        }
        edges.reverse();
        edges
    }
}

/// The field's name of a cycle.
pub fn name(cycle: &[Edge]) -> &'static str {
    let count = |is: fn(&Kind) -> bool| cycle.iter().filter(|edge| is(&edge.kind)).count();
    let rw = count(|kind| matches!(kind, Kind::Rw(_)));
    let wr = count(|kind| matches!(kind, Kind::Wr(_)));
    let lists = |of: fn(&Kind) -> Option<List>| cycle.iter().find_map(|edge| of(&edge.kind));
    let of_rw = lists(|kind| if let Kind::Rw(list) = kind { Some(*list) } else { None });
    let of_ww = lists(|kind| if let Kind::Ww(list) = kind { Some(*list) } else { None });
    let of_wr = lists(|kind| if let Kind::Wr(list) = kind { Some(*list) } else { None });
    if cycle.iter().any(|edge| edge.kind == Kind::Time) {
        return match (rw, wr, cycle.len()) {
            (0, 0, _) => "appends against real time (G0-realtime)",
            (0, ..) => "read of the future (G1c-realtime)",
            (1, 0, 2) => "stale read (G-single-realtime)",
            (1, 1, 3) => "seen, then stale (G-single-realtime)",
            (1, ..) => "real-time violation (G-single-realtime)",
            _ => "real-time violation (G2-realtime)",
        };
    }
    match (rw, wr, cycle.len()) {
        (0, 0, _) => "write cycle (G0)",
        (0, ..) => "circular information flow (G1c)",
        (1, 0, 2) if of_rw == of_ww => "lost update (G-single)",
        (1, 1, 2) if of_rw != of_wr => "transaction seen in part (G-single)",
        (1, ..) => "read skew (G-single)",
        (2, 0, 2) => "write skew (G2)",
        _ => "anti-dependency cycle (G2)",
    }
}
