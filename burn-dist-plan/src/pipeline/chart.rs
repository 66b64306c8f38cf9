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
        self.try_svg(title)
            .expect("writing to a string cannot fail")
    }

    fn try_svg(&self, title: &str) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        let scale = (WIDTH - LEFT - 16.0) / self.end().max(1) as f64;
        let bottom = TOP + ROW * self.ranks.len() as f64;
        let height = bottom + LEGEND;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             font-kind=\"sans-serif\" font-size=\"12\">"
        )?;
        writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>")?;
        writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}: {}</text>",
            escaped(title),
            self.summary()
        )?;
        for (rank, spans) in self.ranks.iter().enumerate() {
            let y = TOP + ROW * rank as f64;
            writeln!(out, "<text x=\"8\" y=\"{}\">rank {rank}</text>", y + 18.0)?;
            writeln!(
                out,
                "<rect x=\"{LEFT}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" fill=\"#eeeeee\"/>",
                y + 2.0,
                self.end() as f64 * scale,
                ROW - 4.0
            )?;
            for span in spans {
                self.write_span(&mut out, span, y, scale)?;
            }
        }
        let mut x = LEFT;
        for (kind, name, colour) in KINDS {
            if !self
                .ranks
                .iter()
                .flatten()
                .any(|span| span.action.kind == kind)
            {
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
        if self
            .ranks
            .iter()
            .flatten()
            .any(|span| self.later_stage(span))
        {
            writeln!(
                out,
                "<text x=\"{x}\" y=\"{}\">lighter: later stages of the rank</text>",
                bottom + 24.0
            )?;
        }
        writeln!(out, "</svg>")?;
        Ok(out)
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

fn cells_of(span: &Span, column: impl Fn(u64) -> usize) -> usize {
    column(span.end) - column(span.start)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
