//! A timeline as a chart: ranks, or their stages, over time.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Kind, Span, Timeline};

/// Columns of a unit of time in a text chart, at most.
const UNIT_COLUMNS_MAX: u64 = 3;
/// The chart's measures in an SVG, in pixels.
const WIDTH: f64 = 1200.0;
/// On either side, and between the name of a row and what is drawn of it.
const MARGIN: f64 = 8.0;
const TOP: f64 = 40.0;
const ROW: f64 = 28.0;
const AXIS: f64 = 24.0;
const LEGEND: f64 = 44.0;
/// A label of a character needs so much.
const CHARACTER: f64 = 7.0;
/// Parts of the time axis, at most.
const TICKS_MAX: u64 = 10;

const KINDS: [(Kind, &str, &str); 4] = [
    (Kind::Forward, "forward", "#4e79a7"),
    (Kind::Backward, "input gradient", "#59a14f"),
    (Kind::Weight, "weight gradient", "#f28e2b"),
    (Kind::Full, "whole backward", "#b07aa1"),
];

/// The unit that a time is counted in.
#[derive(Clone, Copy)]
enum Unit {
    /// The unit of the times of a schedule.
    Own,
    Nanosecond,
}

/// Where the name of a unit stands for so many nanoseconds, the largest first.
const NANOSECONDS: [(u64, &str); 4] = [
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "\u{b5}s"),
    (1, "ns"),
];

impl Unit {
    /// The unit in which an axis to `end` is labelled: how much of this one it is, and its name.
    fn of_axis(self, end: u64) -> (u64, &'static str) {
        match self {
            Self::Own => (1, "time"),
            Self::Nanosecond => NANOSECONDS
                .into_iter()
                .find(|(unit, _)| end >= TICKS_MAX * unit)
                .unwrap_or((1, "ns")),
        }
    }
}

/// The distance of the marks on an axis to `end`: 1, 2 or 5 of a power of ten.
fn tick(end: u64) -> u64 {
    let powers = (0..).map(|power| 10_u64.saturating_pow(power));
    let mut ticks = powers.flat_map(|power| [1, 2, 5].map(|times| power.saturating_mul(times)));
    let found = ticks.find(|tick| end / tick <= TICKS_MAX);
    found.expect("ticks grow beyond any end")
}

impl Timeline {
    /// Draws a line per rank for a terminal, at most so many columns wide, if there are as many as digits are needed.
    ///
    /// An action is its kind and microbatch, `F3`, or its kind alone where that is too long; those of all but the first
    /// stage of a rank are in lower case. Dots are idle.
    pub fn text(&self, columns: usize) -> String {
        let end = self.end().max(1);
        let columns = columns.max(1) as u64;
        let width = (columns / end).min(UNIT_COLUMNS_MAX) * end;
        let width = if width == 0 { columns } else { width };
        let digits = self.ranks.len().saturating_sub(1).to_string().len();
        let mut out = String::new();
        for (rank, spans) in self.ranks.iter().enumerate() {
            let column =
                |time: u64| (u128::from(time) * u128::from(width) / u128::from(end)) as usize;
            let mut row = vec!['.'; width as usize];
            for span in spans {
                let cells = &mut row[column(span.start)..column(span.end)];
                for (cell, character) in cells
                    .iter_mut()
                    .zip(self.label(span, cells_of(span, column)))
                {
                    *cell = character;
                }
            }
            let row: String = row.into_iter().collect();
            out.push_str(&format!("rank {rank:>digits$} {row}\n"));
        }
        out.push_str(&format!("{}\n", self.summary()));
        out
    }

    /// Draws an SVG: a row per rank, named after its stages, a colour per kind, lighter for all but the first stage of
    /// a rank, with microbatches, a time axis, a legend, and the bubble rate beside the title.
    pub fn svg(&self, title: &str) -> String {
        let title = format!("{title}: {}", self.summary());
        try_svg(&[(title, self)], Unit::Own).expect("writing to a string cannot fail")
    }

    /// Draws as [`Timeline::svg`] does, several timelines one below the other, such as what was planned and what was
    /// measured: in nanoseconds, each as wide as the others.
    pub fn svg_of(timelines: &[(&str, &Self)]) -> String {
        let titled = timelines.iter().map(|(title, timeline)| {
            let bubble = 100.0 * timeline.bubble();
            (format!("{title}: bubble {bubble:.1} %"), *timeline)
        });
        try_svg(&titled.collect::<Vec<_>>(), Unit::Nanosecond)
            .expect("writing to a string cannot fail")
    }

    /// The name of a rank's row: by the stages of its actions.
    fn row_name(&self, rank: usize) -> String {
        let stages = self.ranks[rank].iter().map(|span| span.action.stage);
        let stages: BTreeSet<u32> = stages.collect();
        let names: Vec<String> = stages.iter().map(u32::to_string).collect();
        match names.as_slice() {
            [] => format!("rank {rank}"),
            [stage] => format!("stage {stage}"),
            stages => format!("stages {}", stages.join(", ")),
        }
    }

    fn write_span(
        &self,
        out: &mut String,
        span: &Span,
        (left, y): (f64, f64),
        scale: f64,
    ) -> std::fmt::Result {
        let (x, width) = (
            left + span.start as f64 * scale,
            (span.end - span.start) as f64 * scale,
        );
        let kind = KINDS.iter().find(|(kind, ..)| *kind == span.action.kind);
        let colour = kind.map_or("black", |(.., colour)| colour);
        let opacity = if self.later_stage(span) { 0.55 } else { 1.0 };
        writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"{}\" width=\"{width:.2}\" height=\"{}\" fill=\"{colour}\" \
             fill-opacity=\"{opacity}\" stroke=\"white\" stroke-width=\"0.5\"><title>{} {}-{}</title></rect>",
            y + 2.0,
            ROW - 4.0,
            span.action,
            span.start,
            span.end
        )?;
        let label = span.action.microbatch.to_string();
        if width >= CHARACTER * label.len() as f64 + 2.0 {
            writeln!(
                out,
                "<text x=\"{:.2}\" y=\"{}\" text-anchor=\"middle\" fill=\"{}\">{label}</text>",
                x + width / 2.0,
                y + 18.0,
                if self.later_stage(span) {
                    "black"
                } else {
                    "white"
                }
            )?;
        }
        Ok(())
    }

    /// Returns the characters of an action in so many columns.
    fn label(&self, span: &Span, columns: usize) -> Vec<char> {
        let label = format!("{}{}", span.action.kind, span.action.microbatch);
        let kind = span.action.kind.to_string();
        let text = if label.len() <= columns {
            format!("{label:<columns$}")
        } else {
            kind.chars().cycle().take(columns).collect()
        };
        if self.later_stage(span) {
            text.to_lowercase().chars().collect()
        } else {
            text.chars().collect()
        }
    }

    fn later_stage(&self, span: &Span) -> bool {
        span.action.stage as usize >= self.ranks.len()
    }

    fn summary(&self) -> String {
        format!(
            "bubble {:.1} %, idle {}, end {}",
            100.0 * self.bubble(),
            self.idle(),
            self.end()
        )
    }
}

fn try_svg(timelines: &[(String, &Timeline)], unit: Unit) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let rows: usize = timelines.iter().map(|(_, of)| of.ranks.len()).sum();
    let names = timelines
        .iter()
        .flat_map(|(_, of)| (0..of.ranks.len()).map(|rank| of.row_name(rank).len()));
    let left = 2.0 * MARGIN + CHARACTER * names.max().unwrap_or(0) as f64;
    let bottom = (TOP + AXIS) * timelines.len() as f64 + ROW * rows as f64;
    let height = bottom + LEGEND;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">"
    )?;
    writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>")?;
    let mut top = 0.0;
    for (title, timeline) in timelines {
        writeln!(
            out,
            "<text x=\"{left}\" y=\"{}\" font-size=\"15\">{}</text>",
            top + 24.0,
            escaped(title)
        )?;
        top += TOP;
        // The number at the last mark needs room on the right.
        let scale = (WIDTH - left - 4.0 * MARGIN) / timeline.end().max(1) as f64;
        for (rank, spans) in timeline.ranks.iter().enumerate() {
            let name = timeline.row_name(rank);
            writeln!(
                out,
                "<text x=\"{MARGIN}\" y=\"{}\">{name}</text>",
                top + 18.0
            )?;
            writeln!(
                out,
                "<rect x=\"{left}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" fill=\"#eeeeee\"/>",
                top + 2.0,
                timeline.end() as f64 * scale,
                ROW - 4.0
            )?;
            for span in spans {
                timeline.write_span(&mut out, span, (left, top), scale)?;
            }
            top += ROW;
        }
        write_axis(&mut out, timeline.end(), unit, (left, top), scale)?;
        top += AXIS;
    }
    write_legend(&mut out, timelines, (left, bottom))?;
    writeln!(out, "</svg>")?;
    Ok(out)
}

/// Writes marks with times below the rows of a timeline, and the unit beside them.
fn write_axis(
    out: &mut String,
    end: u64,
    unit: Unit,
    (left, top): (f64, f64),
    scale: f64,
) -> std::fmt::Result {
    let (each, name) = unit.of_axis(end);
    let y = top + 18.0;
    writeln!(out, "<text x=\"{MARGIN}\" y=\"{y}\">{name}</text>")?;
    let tick = tick(end);
    for number in 0..=end / tick {
        let (time, x) = (number * tick, left + (number * tick) as f64 * scale);
        writeln!(
            out,
            "<path d=\"M{x:.2} {} v5\" stroke=\"black\"/>",
            top + 1.0
        )?;
        writeln!(
            out,
            "<text x=\"{x:.2}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            time / each
        )?;
    }
    Ok(())
}

fn write_legend(
    out: &mut String,
    timelines: &[(String, &Timeline)],
    (left, bottom): (f64, f64),
) -> std::fmt::Result {
    let any = |is_meant: &dyn Fn(&Timeline, &Span) -> bool| {
        let mut all = timelines.iter();
        all.any(|(_, of)| of.ranks.iter().flatten().any(|span| is_meant(of, span)))
    };
    let mut x = left;
    for (kind, name, colour) in KINDS {
        if !any(&|_, span| span.action.kind == kind) {
            continue;
        }
        let y = bottom + 12.0;
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"{colour}\"/>"
        )?;
        writeln!(
            out,
            "<text x=\"{}\" y=\"{}\">{name} ({kind})</text>",
            x + 20.0,
            y + 12.0
        )?;
        x += 170.0;
    }
    if any(&Timeline::later_stage) {
        writeln!(
            out,
            "<text x=\"{x}\" y=\"{}\">lighter: later stages of the row</text>",
            bottom + 24.0
        )?;
    }
    Ok(())
}

fn cells_of(span: &Span, column: impl Fn(u64) -> usize) -> usize {
    column(span.end) - column(span.start)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
