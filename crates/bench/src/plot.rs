//! Bars and lines, the paper's values beside ours, as SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::BenchError;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 420;
/// The share of a group of bars that stays empty.
const GAP: f64 = 0.2;

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the paper.
    Paper,
    /// Measured in this run.
    Measured,
}

/// A named row of values.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// The source of its values.
    pub origin: Origin,
    /// The values as (x, y).
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Values of this run.
    pub fn measured(label: &str, points: Vec<(f64, f64)>) -> Series {
        Series { label: label.to_owned(), origin: Origin::Measured, points }
    }

    /// Values from the paper.
    pub fn paper(label: &str, points: Vec<(f64, f64)>) -> Series {
        Series { label: label.to_owned(), origin: Origin::Paper, points }
    }
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One group of bars for each x, one bar for each series.
    Bars,
    /// One line for each series.
    Lines,
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Its caption.
    pub title: String,
    /// The quantity on the x axis, with its unit.
    pub x: String,
    /// The quantity on the y axis, with its unit.
    pub y: String,
    /// How it is drawn.
    pub shape: Shape,
    /// The series to draw.
    pub series: Vec<Series>,
}

/// Draws `charts` one below the other into an SVG file.
///
/// # Errors
/// [`BenchError::Plot`] when there is nothing to draw, or the file cannot be written.
pub fn draw(charts: &[Chart], path: &Path) -> Result<(), BenchError> {
    if charts.is_empty() {
        return Err(BenchError::Plot("this run has no figure to draw".to_owned()));
    }
    let mut svg = String::new();
    draw_svg(charts, &mut svg).map_err(|error| BenchError::Plot(error.to_string()))?;
    let io = |source| BenchError::Io { path: path.to_owned(), source };
    std::fs::write(path, svg).map_err(io)
}

fn draw_svg(charts: &[Chart], svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, (WIDTH, HEIGHT * charts.len() as u32));
    let area = area.into_drawing_area();
    area.fill(&WHITE)?;
    for (part, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        draw_chart(chart, part)?;
    }
    area.present()?;
    Ok(())
}

fn draw_chart(
    chart: &Chart,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let x_min = points().fold(f64::INFINITY, |min, point| min.min(point.0));
    let x_max = points().fold(f64::NEG_INFINITY, |max, point| max.max(point.0));
    let y_max = points().fold(0.0, |max: f64, point| max.max(point.1)) * 1.15;
    if !x_min.is_finite() || !x_max.is_finite() {
        return Ok(());
    }
    let pad = if chart.shape == Shape::Bars { 0.5 } else { 0.0 };
    let mut canvas = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(x_min - pad..x_max + pad, 0.0..y_max.max(f64::MIN_POSITIVE))?;
    canvas.configure_mesh().disable_x_mesh().x_desc(&chart.x).y_desc(&chart.y).draw()?;
    let width = (1.0 - GAP) / chart.series.len() as f64;
    for (nth, series) in chart.series.iter().enumerate() {
        let colour = colour(series.origin, nth);
        let drawn = match chart.shape {
            Shape::Lines => {
                canvas.draw_series(LineSeries::new(series.points.iter().copied(), colour))?
            }
            Shape::Bars => canvas.draw_series(series.points.iter().map(|(x, y)| {
                let left = x - 0.5 + GAP / 2.0 + width * nth as f64;
                Rectangle::new([(left, 0.0), (left + width, *y)], colour.filled())
            }))?,
        };
        drawn
            .label(&series.label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    canvas.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    Ok(())
}

fn colour(origin: Origin, nth: usize) -> RGBColor {
    const MEASURED: [RGBColor; 8] = [
        RGBColor(31, 119, 180),
        RGBColor(44, 160, 44),
        RGBColor(214, 39, 40),
        RGBColor(148, 103, 189),
        RGBColor(255, 127, 14),
        RGBColor(23, 190, 207),
        RGBColor(140, 86, 75),
        RGBColor(227, 119, 194),
    ];
    match origin {
        Origin::Paper => RGBColor(160, 160, 160),
        Origin::Measured => MEASURED[nth % MEASURED.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_and_label_is_in_the_svg() {
        let series = vec![
            Series::paper("paper", vec![(1.0, 2.0), (2.0, 3.0)]),
            Series::measured("here", vec![(1.0, 4.0), (2.0, 5.0)]),
        ];
        for shape in [Shape::Bars, Shape::Lines] {
            let chart = Chart {
                title: "A title".to_owned(),
                x: "x (s)".to_owned(),
                y: "y (MB/s)".to_owned(),
                shape,
                series: series.clone(),
            };
            let mut svg = String::new();
            draw_svg(&[chart], &mut svg).unwrap();
            for text in ["A title", "x (s)", "y (MB/s)", "paper", "here", "#A0A0A0", "#2CA02C"] {
                assert!(svg.contains(text), "{text}");
            }
        }
    }
}
