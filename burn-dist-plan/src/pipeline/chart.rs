//! A timeline as a chart: ranks over time.

use std::fmt::Write;

use super::{Kind, Span, Timeline};

/// Columns of a unit of time in a text chart, at most.
const UNIT_COLUMNS_MAX: u64 = 3;
/// The chart's measures in an SVG, in pixels.
const WIDTH: f64 = 1200.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 40.0;
const ROW: f64 = 28.0;
const LEGEND: f64 = 44.0;
/// A label of a character needs so much.
const CHARACTER: f64 = 7.0;

const KINDS: [(Kind, &str, &str); 4] = [
    (Kind::Forward, "forward", "#4e79a7"),
    (Kind::Backward, "input gradient", "#59a14f"),
    (Kind::Weight, "weight gradient", "#f28e2b"),
    (Kind::Full, "whole backward", "#b07aa1"),
];

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

    /// Draws an SVG: a row per rank, a colour per kind, lighter for all but the first stage of a rank, with microbatches,
    /// a legend, and the bubble rate beside the title.
    pub fn svg(&self, title: &str) -> String {
        let title = format!("{title}: {}", self.summary());
        try_svg(&[(title, self)]).expect("writing to a string cannot fail")
    }

    /// As [`Timeline::svg`], of several timelines one below the other, such as what was planned and what was measured.
    /// Each is as wide as the others, whatever its unit of time.
    pub fn svg_of(timelines: &[(&str, &Self)]) -> String {
        let titled = timelines.iter().map(|(title, timeline)| {
            let bubble = 100.0 * timeline.bubble();
            (format!("{title}: bubble {bubble:.1} %"), *timeline)
        });
        try_svg(&titled.collect::<Vec<_>>()).expect("writing to a string cannot fail")
    }

    fn write_span(&self, out: &mut String, span: &Span, y: f64, scale: f64) -> std::fmt::Result {
        let (x, width) = (
            LEFT + span.start as f64 * scale,
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

fn try_svg(timelines: &[(String, &Timeline)]) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let rows: usize = timelines.iter().map(|(_, of)| of.ranks.len()).sum();
    let bottom = TOP * timelines.len() as f64 + ROW * rows as f64;
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
            "<text x=\"{LEFT}\" y=\"{}\" font-size=\"15\">{}</text>",
            top + 24.0,
            escaped(title)
        )?;
        top += TOP;
        let scale = (WIDTH - LEFT - 16.0) / timeline.end().max(1) as f64;
        for (rank, spans) in timeline.ranks.iter().enumerate() {
            writeln!(out, "<text x=\"8\" y=\"{}\">rank {rank}</text>", top + 18.0)?;
            writeln!(
                out,
                "<rect x=\"{LEFT}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" fill=\"#eeeeee\"/>",
                top + 2.0,
                timeline.end() as f64 * scale,
                ROW - 4.0
            )?;
            for span in spans {
                timeline.write_span(&mut out, span, top, scale)?;
            }
            top += ROW;
        }
    }
    write_legend(&mut out, timelines, bottom)?;
    writeln!(out, "</svg>")?;
    Ok(out)
}

fn write_legend(
    out: &mut String,
    timelines: &[(String, &Timeline)],
    bottom: f64,
) -> std::fmt::Result {
    let any = |is_meant: &dyn Fn(&Timeline, &Span) -> bool| {
        let mut all = timelines.iter();
        all.any(|(_, of)| of.ranks.iter().flatten().any(|span| is_meant(of, span)))
    };
    let mut x = LEFT;
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
            "<text x=\"{x}\" y=\"{}\">lighter: later stages of the rank</text>",
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
