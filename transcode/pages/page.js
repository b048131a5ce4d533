for (const place of document.querySelectorAll("[data-figure]")) {
  const {data, layout} = JSON.parse(place.dataset.figure);
  Plotly.newPlot(place, data, layout, {responsive: true, displayModeBar: false});
}
for (const table of document.querySelectorAll("table.sortable")) {
  new DataTable(table, {order: [], pageLength: 25});
}
document.documentElement.dataset.drawn = "yes";
