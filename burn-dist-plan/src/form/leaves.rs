//! Numbers, names, lists and layouts.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};
use std::ops::Range;
use std::sync::Arc;

use super::{Failed, Form, Reader, Writer, form};
use rustc_hash::FxHashMap;

use crate::ScheduleKind;
use crate::ir::region::Region;
use crate::ir::{Indexed, ParamRole, ParamSpec, Pipeline, ScheduleChoice, Stage, Style};
use crate::layout::Policy;
use crate::layout::redistribute::StepKind;
use crate::layout::{DimLayout, Factor, Layout, LayoutText, Partial};
use crate::memory::MemoryClass;
use crate::mesh::{AxisIndex, BoolStore, DType, MeshShape, Quantized, Rank, ReduceOp, Split};
use crate::pipeline::Action;
use crate::policy::{
    Accumulation, ActivationCheckpoint, AsyncTp, ContextParallel, Float8, Offload, Precision,
    Reshard, ShardStrategy,
};
use crate::rule::Assignment;
use crate::storage::Storage;

/// Names and numbers: what `Display` writes and `FromStr` reads, without spaces.
macro_rules! tokens {
    ($($type:ty: $what:literal),* $(,)?) => {
        $(impl Form for $type {
            fn write(&self, to: &mut Writer<'_>) {
                to.put(&self.to_string());
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
                let belongs = |c: char| c.is_alphanumeric() || "_-.".contains(c);
                from.token($what, belongs, |token| token.parse().ok())
            }
        })*
    };
}

tokens!(
    u8: "a number", u32: "a number", u64: "a number", usize: "a number", i32: "a number",
    i64: "a number", isize: "a number", f64: "a number",
    Action: "an action", ScheduleKind: "a schedule", Style: "a style", ParamRole: "a role",
    ShardStrategy: "a strategy", Accumulation: "when to reduce", AsyncTp: "auto, on or off",
    ContextParallel: "auto, ring or gather",
);

/// Texts in quotes, and types that are written as one.
macro_rules! texts {
    ($($type:ty: $text:expr, $parse:expr;)*) => {
        $(impl Form for $type {
            fn write(&self, to: &mut Writer<'_>) {
                let text: fn(&Self) -> String = $text;
                to.put(&serde_json::to_string(&text(self)).expect("a text"));
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
                from.skip_spaces();
                let start = from.at;
                let mut text = serde_json::Deserializer::from_str(from.rest()).into_iter::<String>();
                let Some(Ok(found)) = text.next() else {
                    return from.fail_at(start, "a text in quotes");
                };
                let length = text.byte_offset();
                let parse: fn(String) -> Result<Self, String> = $parse;
                match parse(found) {
                    Ok(found) => {
                        from.at += length;
                        Ok(found)
                    }
                    Err(problem) => from.fail_at(start, problem),
                }
            }
        })*
    };
}

macro_rules! parsed {
    () => {
        |text| {
            text.parse()
                .map_err(|error| format!("another text: {error}"))
        }
    };
}

texts!(
    String: String::clone, Ok;
    Arc<str>: |text| text.to_string(), |text| Ok(text.into());
    &'static str: |text| text.to_string(), |text| Ok(String::leak(text));
    LayoutText: |text| text.as_str().into(), |text| {
        LayoutText::parse(&text).map_err(|error| format!("a layout: {error}"))
    };
    MeshShape: MeshShape::to_string, parsed!();
    Reshard: Reshard::to_string, parsed!();
    ActivationCheckpoint: ActivationCheckpoint::to_string, parsed!();
    Precision: Precision::to_string, parsed!();
    Float8: Float8::to_string, parsed!();
    Offload: Offload::to_string, parsed!();
    crate::pipeline::Schedule: crate::pipeline::Schedule::to_string, parsed!();
);

/// A flag: its word is there or is not.
impl Form for bool {
    fn write(&self, _: &mut Writer<'_>) {
        assert!(self, "what is not so is left out");
    }

    fn read(_: &mut Reader<'_>) -> Result<Self, Failed> {
        Ok(true)
    }
}

fn write_list<'a, T: Form + 'a>(items: impl IntoIterator<Item = &'a T>, to: &mut Writer<'_>) {
    to.put("[");
    for (index, item) in items.into_iter().enumerate() {
        to.put(if index == 0 { "" } else { ", " });
        item.write(to);
    }
    to.put("]");
}

fn read_list<T: Form, C: FromIterator<T>>(from: &mut Reader<'_>) -> Result<C, Failed> {
    let mut items = Vec::new();
    from.word("[")?;
    while !from.has("]") {
        if !items.is_empty() {
            from.word(",")?;
        }
        items.push(T::read(from)?);
    }
    Ok(items.into_iter().collect())
}

macro_rules! lists {
    ($($type:ty),*) => {
        $(impl<T: Form> Form for $type {
            fn write(&self, to: &mut Writer<'_>) {
                write_list(self.iter(), to);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
                read_list(from)
            }
        })*
    };
}

lists!(Vec<T>, Box<[T]>, Arc<[T]>);

impl<T: Form, const N: usize> Form for [T; N] {
    fn write(&self, to: &mut Writer<'_>) {
        write_list(self, to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let items = read_list::<T, Vec<T>>(from)?;
        let items = items.try_into();
        items.or_else(|_| from.fail(format!("a list of {N}")))
    }
}

impl<K: Form + Ord + Hash, V: Form, S: BuildHasher + Default> Form for HashMap<K, V, S> {
    fn write(&self, to: &mut Writer<'_>) {
        let mut pairs: Vec<_> = self.iter().collect();
        pairs.sort_by_key(|(key, _)| *key);
        to.put("[");
        for (index, (key, value)) in pairs.into_iter().enumerate() {
            to.put(if index == 0 { "" } else { ", " });
            key.write(to);
            to.put(": ");
            value.write(to);
        }
        to.put("]");
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let pairs = read_list::<Pair<K, V>, Vec<_>>(from)?;
        Ok(pairs.into_iter().map(|pair| (pair.0, pair.1)).collect())
    }
}

impl<K: Form + Ord + Clone, V: Form + Clone> Form for BTreeMap<K, V> {
    fn write(&self, to: &mut Writer<'_>) {
        let pairs = self
            .iter()
            .map(|(key, value)| Pair(key.clone(), value.clone()));
        write_list(&pairs.collect::<Vec<_>>(), to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let pairs = read_list::<Pair<K, V>, Vec<_>>(from)?;
        Ok(pairs.into_iter().map(|pair| (pair.0, pair.1)).collect())
    }
}

/// An entry of a map.
struct Pair<K, V>(K, V);

impl<K: Form, V: Form> Form for Pair<K, V> {
    fn write(&self, to: &mut Writer<'_>) {
        self.0.write(to);
        to.put(": ");
        self.1.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let key = K::read(from)?;
        from.word(":")?;
        Ok(Self(key, V::read(from)?))
    }
}

impl<A: Form, B: Form> Form for (A, B) {
    fn write(&self, to: &mut Writer<'_>) {
        to.put("(");
        self.0.write(to);
        to.put(", ");
        self.1.write(to);
        to.put(")");
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        from.word("(")?;
        let first = A::read(from)?;
        from.word(",")?;
        let second = B::read(from)?;
        from.word(")")?;
        Ok((first, second))
    }
}

impl<T: Form> Form for Option<T> {
    fn write(&self, to: &mut Writer<'_>) {
        match self {
            Some(value) => value.write(to),
            None => to.put("none"),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        match from.has("none") {
            true => Ok(None),
            false => T::read(from).map(Some),
        }
    }
}

impl<T: Form> Form for Range<T> {
    fn write(&self, to: &mut Writer<'_>) {
        self.start.write(to);
        to.put(" to ");
        self.end.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let start = T::read(from)?;
        from.word("to")?;
        Ok(start..T::read(from)?)
    }
}

/// Pointers, as what they point to.
macro_rules! pointers {
    ($($pointer:ty),*) => {
        $(impl Form for $pointer {
            fn write(&self, to: &mut Writer<'_>) {
                Form::write(&**self, to);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
                Form::read(from).map(Self::new)
            }
        })*
    };
}

pointers!(
    Arc<FxHashMap<u32, Indexed>>,
    Arc<Layout>,
    Arc<Assignment>,
    Arc<Pipeline>,
    Arc<Region>,
    Arc<MeshShape>,
    Arc<crate::pipeline::Schedule>
);

impl<T: Form> Form for Box<T> {
    fn write(&self, to: &mut Writer<'_>) {
        (**self).write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        T::read(from).map(Self::new)
    }
}

/// Parameters and policies: written once, and elsewhere by their numbers.
macro_rules! numbers {
    ($($type:ident in $list:ident: $sign:literal;)*) => {
        $(impl Form for Arc<$type> {
            fn write(&self, to: &mut Writer<'_>) {
                let known = &mut to.known.$list;
                let number = known.iter().position(|other| other == self);
                let number = number.unwrap_or_else(|| {
                    known.push(self.clone());
                    known.len() - 1
                });
                to.put(&format!(concat!($sign, "{}"), number));
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
                from.word($sign)?;
                let start = from.at;
                let number = usize::read(from)?;
                match from.known.$list.get(number) {
                    Some(found) => Ok(found.clone()),
                    None => from.fail_at(start, concat!("the number of one of the ", stringify!($list))),
                }
            }
        })*
    };
}

numbers!(
    Policy in policies: "q";
    ParamSpec in params: "p";
);

impl Form for AxisIndex {
    fn write(&self, to: &mut Writer<'_>) {
        // Behind the axes of the mesh is the one of chunks.
        let axis = to.known.mesh.axes().get(usize::from(self.0));
        let name = axis.map_or("@chunk", |axis| axis.name.as_str()).to_string();
        to.put(&name);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let mesh = from.known.mesh;
        let belongs = |c: char| c.is_alphanumeric() || "_-@".contains(c);
        from.token(&format!("an axis of {mesh}"), belongs, |name| match name {
            "@chunk" => Some(Self(mesh.num_axes() as u8)),
            name => mesh.axis(name).ok(),
        })
    }
}

form!(enum ReduceOp { "sum" => Sum, "mean" => Mean, "min" => Min, "max" => Max, "prod" => Prod });
form!(enum BoolStore { "native" => Native, "u8" => U8, "u32" => U32 });
form!(struct Quantized { "" size, " " code });
form!(enum DType {
    "f64" => F64, "f32" => F32, "flex32" => Flex32, "f16" => F16, "bf16" => BF16,
    "i64" => I64, "i32" => I32, "i16" => I16, "i8" => I8, "u64" => U64, "u32" => U32, "u16" => U16, "u8" => U8,
    "bool" => Bool(" " store), "quantized" => Quantized(" " of),
});
form!(enum MemoryClass {
    "at_rest" => AtRest, "gathered" => Gathered, "gradient" => Gradient, "optimizer" => Optimizer,
    "activation" => Activation, "other" => Other,
});
form!(enum Storage { "buffers" => Buffers, "opaque" => Opaque });
form!(struct Split { "" nodes, " nodes of " per_node });

impl Form for Rank {
    fn write(&self, to: &mut Writer<'_>) {
        self.0.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        u32::read(from).map(Self)
    }
}

/// A factor: its size, and the axes that split it; a star marks those at rest.
fn write_factor(factor: &Factor, at_rest: &[AxisIndex], to: &mut Writer<'_>) {
    factor.size.write(to);
    for (index, axis) in factor.axes.iter().enumerate() {
        to.put(if index == 0 { "{" } else { ", " });
        axis.write(to);
        to.put(if at_rest.contains(axis) { "*" } else { "" });
    }
    to.put(if factor.axes.is_empty() { "" } else { "}" });
}

fn read_factor(at_rest: &mut Vec<AxisIndex>, from: &mut Reader<'_>) -> Result<Factor, Failed> {
    let size = usize::read(from)?;
    let mut axes = Vec::new();
    if from.has("{") {
        loop {
            let axis = AxisIndex::read(from)?;
            axes.push(axis);
            at_rest.extend(from.has("*").then_some(axis));
            if !from.has(",") {
                break;
            }
        }
        from.word("}")?;
    }
    Ok(Factor { size, axes })
}

fn write_dim(dim: &DimLayout, at_rest: &[AxisIndex], to: &mut Writer<'_>) {
    if let [factor] = &dim.factors[..] {
        return write_factor(factor, at_rest, to);
    }
    for (index, factor) in dim.factors.iter().enumerate() {
        to.put(if index == 0 { "(" } else { " . " });
        write_factor(factor, at_rest, to);
    }
    to.put(")");
}

fn read_dim(at_rest: &mut Vec<AxisIndex>, from: &mut Reader<'_>) -> Result<DimLayout, Failed> {
    let mut factors = Vec::new();
    if from.has("(") {
        loop {
            factors.push(read_factor(at_rest, from)?);
            if !from.has(".") {
                break;
            }
        }
        from.word(")")?;
    } else {
        factors.push(read_factor(at_rest, from)?);
    }
    Ok(DimLayout { factors })
}

impl Form for DimLayout {
    fn write(&self, to: &mut Writer<'_>) {
        write_dim(self, &[], to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        read_dim(&mut Vec::new(), from)
    }
}

form!(struct Partial { "" op, "{" axis });

impl Form for Layout {
    fn write(&self, to: &mut Writer<'_>) {
        let mut at_rest = self.axes_used();
        at_rest.retain(|axis| self.at_rest.contains(axis));
        assert_eq!(at_rest.len(), self.at_rest.len(), "what rests is split");
        to.put("[");
        for (index, dim) in self.dims.iter().enumerate() {
            to.put(if index == 0 { "" } else { ", " });
            write_dim(dim, &self.at_rest, to);
        }
        to.put("]");
        for partial in &self.partial {
            to.put(" + ");
            partial.write(to);
            to.put("}");
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let (mut dims, mut partial, mut at_rest) = (Vec::new(), Vec::new(), Vec::new());
        from.word("[")?;
        while !from.has("]") {
            if !dims.is_empty() {
                from.word(",")?;
            }
            dims.push(read_dim(&mut at_rest, from)?);
        }
        while from.has("+") {
            partial.push(Partial::read(from)?);
            from.word("}")?;
        }
        at_rest.sort();
        Ok(Self {
            dims,
            partial,
            at_rest,
        })
    }
}

form!(enum StepKind {
    "all_gather" => AllGather { " " axes, " dim " dim, " factor " factor },
    "reduce_scatter" => ReduceScatter { " " axes, " " op, " dim " dim, " factor " factor },
    "all_reduce" => AllReduce { " " axes, " " op },
    "all_to_all" => AllToAll { " " axes, " from " from, " to " to },
    "slice" => Slice { " " axes, " dim " dim, " factor " factor },
    "to_partial" => ToPartial { " " axis, " " op },
    "refactor" => Refactor,
});
form!(struct Assignment { "" factors, " kept " kept or Vec::new() });

form!(struct Policy {
    "" strategy, " over " strategies or Vec::new(), " reshard " reshard, " prefetch " prefetch,
    " reduced by " accumulation, " checkpoint " checkpoint, " precision " precision,
    " float8 " float8 or None, " offload " offload, " context " context, " async_tp " async_tp,
});
form!(struct ParamSpec {
    "" path, " " style, " " role, " " layout, " input " input or None, " output " output or None,
    " unit " unit or None, " of " policy, " stage " stage or None, " rests" at_rest or false,
});
form!(struct Stage { "" index, " of " pipeline });
form!(struct Pipeline { "" stages, " over " ranks, " along " axis, " by " schedule });
form!(enum ScheduleChoice {
    "kind" => Kind(" " kind), "table" => Table(" " table), "auto" => Auto { " within " bytes_max or None },
});
