from squall.reporting.summary import render_summary
def test_x(make_outcome, make_mixed):
    print(render_summary(make_outcome()))
    print("=======")
    print(render_summary(make_mixed()))
    assert 0
