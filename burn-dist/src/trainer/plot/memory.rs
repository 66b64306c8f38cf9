//! The memory of a rank over a step: areas by class, stacked, and the plan's prediction.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Surface, render};
use crate::explanation::{MemoryClass, MemoryTimeline};

/// The memory to draw.
#[derive(Debug, Clone, Copy)]
pub struct MemoryPlot<'a> {
    /// Above the areas.
    pub title: &'a str,
    /// The areas.
    pub held: &'a MemoryTimeline,
    /// A line beside them: what the plan predicted.
    pub predicted: Option<&'a MemoryTimeline>,
    /// The work at the peak.
    pub cause: &'a str,
}

/// The layers, from the lowest up: what stays throughout comes first.
const LAYERS: [(MemoryClass, RGBColor); 6] = [
    (MemoryClass::AtRest, RGBColor(38, 84, 124)),
    (MemoryClass::Optimizer, RGBColor(92, 150, 190)),
    (MemoryClass::Other, RGBColor(168, 168, 176)),
    (MemoryClass::Gathered, RGBColor(62, 150, 110)),
    (MemoryClass::Gradient, RGBColor(214, 134, 48)),
    (MemoryClass::Activation, RGBColor(238, 200, 120)),
];

/// Columns of the drawing: of the tasks that share one, the task that holds the most is drawn.
const COLUMNS: usize = 800;

/// Draws the memory of a rank over a step, as SVG or PNG by the file's name.
///
/// # Errors
/// If the name ends in neither `.svg` nor `.png`, or the file cannot be written.
pub fn write_memory(path: &Path, plot: &MemoryPlot<'_>) -> anyhow::Result<()> {
    render(path, "cannot draw the memory", &Memory(plot))
}

struct Memory<'a>(&'a MemoryPlot<'a>);

/// Indices of the tasks that are drawn.
fn columns(timeline: &MemoryTimeline) -> Vec<usize> {
    let tasks = timeline.tasks.len();
    let each = tasks.div_ceil(COLUMNS).max(1);
    let most = |from: usize| {
        let to = (from + each).min(tasks);
        (from..to).max_by_key(|task| timeline.tasks[*task].total())
    };
    (0..tasks).step_by(each).filter_map(most).collect()
}

impl Surface for Memory<'_> {
    fn draw<DB: DrawingBackend<ErrorType: 'static>>(
        &self,
        root: &DrawingArea<DB, Shift>,
        scale: u32,
    ) -> anyhow::Result<()> {
        let MemoryPlot {
            title,
            held,
            predicted,
            cause,
        } = *self.0;
        let most = held
            .peak_bytes()
            .max(predicted.map_or(0, MemoryTimeline::peak_bytes));
        let (unit, name) = unit(most);
        let highest = (most as f64 / unit).max(f64::MIN_POSITIVE);
        let font = |size: u32| ("sans-serif", scale * size);
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(root)
            .caption(title, font(18).into_font().color(&RGBColor(40, 40, 44)))
            .margin(16 * scale)
            .x_label_area_size(40 * scale)
            .y_label_area_size(64 * scale)
            // The room above is for the legend.
            .build_cartesian_2d(0..held.tasks.len().max(1), 0.0..highest * 1.5)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(228, 228, 232).stroke_width(scale))
            .axis_style(RGBColor(150, 150, 156).stroke_width(scale))
            .x_labels(10)
            .y_labels(8)
            .x_label_formatter(&|task| task.to_string())
            .y_label_formatter(&|bytes| format!("{bytes:.0}"))
            .x_desc("task of the step")
            .y_desc(name)
            .label_style(font(13))
            .axis_desc_style(font(14))
            .draw()?;
        let drawn = columns(held);
        let mut ground = vec![0.0; drawn.len()];
        for (class, colour) in LAYERS {
            let top: Vec<f64> = drawn
                .iter()
                .zip(&ground)
                .map(|(task, ground)| ground + held.tasks[*task].get(class) as f64 / unit)
                .collect();
            if top == ground {
                continue;
            }
            let upper = drawn.iter().copied().zip(top.iter().copied());
            let lower = drawn.iter().copied().zip(ground.iter().copied()).rev();
            let outline: Vec<(usize, f64)> = upper.chain(lower).collect();
            let side = 12 * scale as i32;
            chart
                .draw_series(std::iter::once(Polygon::new(outline, colour.filled())))?
                .label(class.name())
                .legend(move |(x, y)| {
                    let corners = [(x, y - side / 2), (x + side, y + side / 2)];
                    Rectangle::new(corners, colour.filled())
                });
            ground = top;
        }
        let dark = RGBColor(30, 30, 34);
        if let Some(predicted) = predicted {
            let line = columns(predicted).into_iter().map(|task| {
                let bytes = predicted.tasks[task].total() as f64 / unit;
                (task, bytes)
            });
            let style = dark.stroke_width(scale);
            let long = 12 * scale as i32;
            chart
                .draw_series(LineSeries::new(line, style))?
                .label("predicted")
                .legend(move |(x, y)| PathElement::new([(x, y), (x + long, y)], style));
        }
        let peak = (held.peak, held.peak_bytes() as f64 / unit);
        let red = RGBColor(190, 40, 40);
        chart
            .draw_series(std::iter::once(Circle::new(peak, 4 * scale, red.filled())))?
            .label(format!("peak: {cause}"))
            .legend(move |(x, y)| Circle::new((x + 6 * scale as i32, y), 4 * scale, red.filled()));
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.9))
            .border_style(RGBColor(200, 200, 204))
            .legend_area_size(20 * scale)
            .margin(6 * scale)
            .label_font(font(12))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

/// The unit that a number of bytes is written in.
fn unit(bytes: u64) -> (f64, &'static str) {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let found = units.into_iter().find(|(unit, _)| bytes >= 4 * unit);
    found.map_or((1.0, "bytes"), |(unit, name)| (unit as f64, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_that_people_read() {
        assert_eq!(unit(5 << 20), (1048576.0, "MiB"));
        assert_eq!(unit(3 << 20), (1024.0, "KiB"));
        assert!(columns(&MemoryTimeline::default()).is_empty());
    }
}
