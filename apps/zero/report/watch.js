// Says on the page what went wrong in its scripts. Comes before them.
function tellProblem(text) {
  const place = document.getElementById("problem");
  place.hidden = false;
  place.textContent = "This page could not be drawn: " + text;
  document.title = "Error: " + text;
}
window.onerror = (message, source, line) => { tellProblem(message + " (line " + line + ")"); };
window.onunhandledrejection = (event) => { tellProblem(String(event.reason)); };
