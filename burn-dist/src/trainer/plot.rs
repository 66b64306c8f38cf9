//! Drawings, as SVG or PNG by the file's name; neither needs fonts when it is drawn.

mod canvas;
mod memory;

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, bail};
use canvas::Canvas;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::train::files::write_whole;

pub use memory::{MemoryPlot, write_memory};

/// One phase of training.
#[derive(Debug, Clone)]
pub struct Curve<'a> {
    /// Its name in the legend.
    pub name: &'a str,
    /// Loss of each step.
    pub losses: &'a [f32],
    /// Losses on what is held out, each after so many of the steps.
    pub validation: &'a [(usize, f32)],
}

const COLOURS: [RGBColor; 2] = [RGBColor(124, 124, 132), RGBColor(31, 98, 189)];
/// The colour of losses on what is held out.
const HELD_OUT: RGBColor = RGBColor(206, 92, 30);
/// Width and height, in pixels of an SVG.
const SIZE: (u32, u32) = (900, 480);
/// Pixels of a PNG for each of those: lines and letters stay smooth on fine screens.
const PNG_SCALE: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Svg,
    Png,
}

/// Draws the phases one after the other, steps counted from 1: each loss faintly, their running mean boldly, and a line
/// with a dot for each loss on what is held out.
///
/// # Errors
/// If the name ends in neither `.svg` nor `.png`, or the file cannot be written.
pub fn write(path: &Path, title: &str, curves: &[Curve<'_>]) -> anyhow::Result<()> {
    render(
        path,
        "cannot draw the loss curve",
        &Losses { title, curves },
    )
}

/// Something that can be drawn on an area of a multiple of [`SIZE`].
trait Surface {
    fn draw<DB: DrawingBackend<ErrorType: 'static>>(
        &self,
        root: &DrawingArea<DB, Shift>,
        scale: u32,
    ) -> anyhow::Result<()>;
}

struct Losses<'a> {
    title: &'a str,
    curves: &'a [Curve<'a>],
}

impl Surface for Losses<'_> {
    fn draw<DB: DrawingBackend<ErrorType: 'static>>(
        &self,
        root: &DrawingArea<DB, Shift>,
        scale: u32,
    ) -> anyhow::Result<()> {
        draw(root, scale, self.title, self.curves)
    }
}

fn render(path: &Path, drawing: &'static str, what: &impl Surface) -> anyhow::Result<()> {
    let bytes = match format(path)? {
        Format::Svg => {
            let mut svg = String::new();
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            what.draw(&root, 1).context(drawing)?;
            drop(root);
            svg.into_bytes()
        }
        Format::Png => {
            let mut canvas = Canvas::new(PNG_SCALE * SIZE.0, PNG_SCALE * SIZE.1);
            let root = (&mut canvas).into_drawing_area();
            what.draw(&root, PNG_SCALE).context(drawing)?;
            drop(root);
            let mut png = Vec::new();
            canvas.write(&mut png).context(drawing)?;
            png
        }
    };
    write_whole(path, |to| to.write_all(&bytes))
        .with_context(|| format!("cannot write the plot {}", path.display()))
}

/// Refuses names that end in neither `.svg` nor `.png`.
///
/// # Errors
/// Names the file.
pub fn check_name(path: &Path) -> anyhow::Result<()> {
    format(path).map(drop)
}

fn format(path: &Path) -> anyhow::Result<Format> {
    let is = |name| {
        path.extension()
            .is_some_and(|end| end.eq_ignore_ascii_case(name))
    };
    match (is("svg"), is("png")) {
        (true, _) => Ok(Format::Svg),
        (_, true) => Ok(Format::Png),
        _ => bail!(
            "the plot {} is neither an .svg nor a .png file: curves are drawn as one of these",
            path.display()
        ),
    }
}

/// Draws on an area of `scale` times [`SIZE`].
fn draw<DB: DrawingBackend<ErrorType: 'static>>(
    root: &DrawingArea<DB, Shift>,
    scale: u32,
    title: &str,
    curves: &[Curve<'_>],
) -> anyhow::Result<()> {
    let losses_of = |curve: &Curve<'_>| {
        let held_out = curve.validation.iter().map(|(_, loss)| *loss);
        curve
            .losses
            .iter()
            .copied()
            .chain(held_out)
            .collect::<Vec<_>>()
    };
    let finite = curves
        .iter()
        .flat_map(losses_of)
        .filter(|loss| loss.is_finite());
    let num_steps: usize = curves.iter().map(|curve| curve.losses.len()).sum();
    let (losses, decimals) = axis(finite);
    let font = |size: u32| ("sans-serif", scale * size);

    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .caption(title, font(20).into_font().color(&RGBColor(40, 40, 44)))
        .margin(16 * scale)
        .x_label_area_size(40 * scale)
        .y_label_area_size(56 * scale)
        .build_cartesian_2d(1..num_steps.max(2), losses)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(228, 228, 232).stroke_width(scale))
        .axis_style(RGBColor(150, 150, 156).stroke_width(scale))
        .x_labels(10)
        .y_labels(8)
        .x_label_formatter(&|step| step.to_string())
        .y_label_formatter(&|loss| format!("{loss:.decimals$}"))
        .x_desc("step")
        .y_desc("loss (nats per token)")
        .label_style(font(13))
        .axis_desc_style(font(14))
        .draw()?;

    let mut first = 1;
    for (curve, colour) in curves
        .iter()
        .zip(COLOURS.iter().cycle().skip(2 - curves.len().min(2)))
    {
        let points = |losses: &[f32]| -> Vec<(usize, f32)> {
            let steps = losses
                .iter()
                .enumerate()
                .filter(|(_, loss)| loss.is_finite());
            steps.map(|(step, loss)| (first + step, *loss)).collect()
        };
        chart.draw_series(LineSeries::new(
            points(curve.losses),
            colour.mix(0.25).stroke_width(scale),
        ))?;
        let smooth = running_mean(curve.losses, curve.losses.len() / 50);
        let bold = colour.stroke_width(2 * scale);
        let long = 18 * scale as i32;
        chart
            .draw_series(LineSeries::new(points(&smooth), bold))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + long, y)], bold));
        let held_out = curve.validation.iter();
        let held_out: Vec<(usize, f32)> = held_out
            .filter(|(_, loss)| loss.is_finite())
            // Of the last step that it comes after.
            .map(|(after, loss)| (first + after.saturating_sub(1), *loss))
            .collect();
        if !held_out.is_empty() {
            let style = HELD_OUT.stroke_width(2 * scale);
            let dots = held_out.clone();
            let dot = move |at| Circle::new(at, 3 * scale, HELD_OUT.filled());
            chart
                .draw_series(LineSeries::new(held_out, style))?
                .label("validation")
                .legend(move |(x, y)| PathElement::new([(x, y), (x + long, y)], style));
            chart.draw_series(dots.into_iter().map(dot))?;
        }
        first += curve.losses.len();
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .border_style(RGBColor(200, 200, 204))
        .legend_area_size(26 * scale)
        .margin(6 * scale)
        .label_font(font(13))
        .draw()?;
    root.present()?;
    Ok(())
}

/// The axis of the losses, from just below the lowest to above the highest, and the decimals that tell its marks apart.
fn axis(losses: impl Iterator<Item = f32>) -> (Range<f32>, usize) {
    let (low, high) = losses.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), loss| {
        (low.min(loss), high.max(loss))
    });
    if low > high {
        return (0.0..1.0, 1);
    }
    // A flat curve has room above and below, as much as can be told apart.
    let range = (high - low).max(1e-3 * high.abs()).max(1e-6);
    let below = low - 0.05 * range;
    // A loss is never negative: below 0 there is nothing to show. The room above keeps the legend off a flat curve.
    let below = if low >= 0.0 { below.max(0.0) } else { below };
    let mark = range / 8.0;
    (
        below..high + 0.15 * range,
        (-mark.log10()).ceil().max(1.0) as usize,
    )
}

/// The mean of each value and its `reach` neighbours on either side.
fn running_mean(values: &[f32], reach: usize) -> Vec<f32> {
    let mean = |at: usize| {
        let near = &values[at.saturating_sub(reach)..(at + reach + 1).min(values.len())];
        near.iter().sum::<f32>() / near.len() as f32
    };
    (0..values.len()).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_every_phase_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loss.svg");
        let base = [3.0, 2.0, 1.5, f32::NAN, 1.0];
        let tuned = [1.2, 0.6];
        let curves = [
            Curve {
                name: "pretrain",
                losses: &base,
                validation: &[],
            },
            Curve {
                name: "finetune",
                losses: &tuned,
                validation: &[(1, 1.5), (2, f32::NAN), (2, 1.1)],
            },
        ];
        write(&path, "tiny", &curves).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("pretrain") && svg.contains("finetune") && svg.contains("tiny"));
        assert!(
            svg.matches("<polyline").count() >= 4,
            "each phase has a faint and a bold line"
        );
        assert!(!svg.contains("NaN"));
        assert!(svg.contains("validation"));
        assert_eq!(
            svg.matches("<circle").count(),
            2,
            "a dot for each finite one"
        );
    }

    #[test]
    fn steps_are_counted_from_1() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loss.svg");
        let losses = [3.0, 2.0, 1.0];
        let validation = [(1, 2.5), (3, 1.5)];
        let curve = |name, validation| Curve {
            name,
            losses: &losses,
            validation,
        };
        write(
            &path,
            "tiny",
            &[curve("pretrain", &[]), curve("finetune", &validation)],
        )
        .unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        // The first step is on the left edge of the axis, the last on its right one, and the dots over steps 4 and 6.
        let xs = |line: &str| -> Vec<f64> {
            let points = line
                .split("points=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap();
            let x = |point: &str| point.split(',').next().unwrap().parse().unwrap();
            points.split_whitespace().map(x).collect()
        };
        let lines: Vec<Vec<f64>> = svg
            .lines()
            .filter(|line| line.starts_with("<polyline") && !line.contains("stroke=\"#969696\""))
            .map(xs)
            .filter(|xs| xs.len() == 3)
            .collect();
        let (left, right) = (lines[0][0], lines[2][2]);
        let step = (right - left) / 5.0;
        assert!((lines[2][0] - left - 3.0 * step).abs() <= 1.0, "{lines:?}");
        let dots: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<circle"))
            .map(|line| {
                line.split("cx=\"")
                    .nth(1)
                    .unwrap()
                    .split('"')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        assert!((dots[0] - left - 3.0 * step).abs() <= 1.0, "{dots:?}");
        assert!((dots[1] - right).abs() <= 1.0, "{dots:?}");
        assert!(
            svg.contains(">\n1\n<") || svg.contains(">1<"),
            "a mark at 1: {svg}"
        );
    }

    #[test]
    fn a_png_holds_the_colours_of_its_curves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loss.png");
        let losses = [3.0, 2.0, 1.5, 1.0];
        let name = "finetune";
        let curve = Curve {
            name,
            losses: &losses,
            validation: &[],
        };
        write(&path, "tiny", &[curve]).unwrap();
        let file = std::io::BufReader::new(std::fs::File::open(&path).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (1800, 960));
        let RGBColor(r, g, b) = COLOURS[1];
        let of_the_curve = pixels.chunks(3).filter(|pixel| *pixel == [r, g, b]).count();
        assert!(of_the_curve > 1000, "{of_the_curve}");
    }

    #[test]
    fn a_run_without_steps_still_draws() {
        let dir = tempfile::tempdir().unwrap();
        write(
            &dir.path().join("loss.SVG"),
            "nothing",
            &[Curve {
                name: "pretrain",
                losses: &[],
                validation: &[],
            }],
        )
        .unwrap();
    }

    #[test]
    fn other_formats_are_refused() {
        let error = write(Path::new("loss.gif"), "", &[])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("loss.gif is neither an .svg nor a .png file"),
            "{error}"
        );
    }

    #[test]
    fn the_axis_begins_near_the_data() {
        let axis = |losses: &[f32]| axis(losses.iter().copied());
        let (range, decimals) = axis(&[7.4, 7.2, 7.0, 6.9]);
        assert!(range.start > 6.8 && range.start < 6.9, "{range:?}");
        assert!(range.end > 7.4 && range.end < 7.5, "{range:?}");
        assert_eq!(decimals, 2);
        // A curve that comes down to nothing ends on the axis.
        let (range, decimals) = axis(&[8.0, 0.01]);
        assert_eq!((range.start, decimals), (0.0, 1));
        for flat in [[3.0, 3.0], [0.0, 0.0], [1e-9, 1e-9]] {
            let (range, _) = axis(&flat);
            assert!(range.start <= flat[0] && range.end > flat[0], "{range:?}");
        }
        assert_eq!(axis(&[]), (0.0..1.0, 1));
    }

    #[test]
    fn the_mean_runs_over_neighbours() {
        assert_eq!(running_mean(&[1.0, 2.0, 6.0], 1), [1.5, 3.0, 4.0]);
        assert_eq!(running_mean(&[1.0, 2.0], 0), [1.0, 2.0]);
    }
}
