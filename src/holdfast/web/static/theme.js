// Before the first paint, so that a page never shows in the other theme first.
{
  const chosen = localStorage.getItem("holdfast.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
